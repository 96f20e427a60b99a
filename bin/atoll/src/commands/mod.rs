//! The commands, one per file.

pub mod balance;
pub mod chaos;
pub mod config;
pub mod down;
pub mod metrics;
pub mod options;
pub mod paper;
pub mod relocate;
pub mod run;
pub mod scale;
pub mod ss;
pub mod status;
mod table;
pub mod up;
pub mod upgrade;

/// Replaces control characters, except newline and tab, because parts of `text` come from servers, which may
/// be compromised.
fn harmless(text: &str) -> String {
    text.replace(|character: char| character.is_control() && character != '\n' && character != '\t', "?")
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_order_reaches_the_terminal() {
        assert_eq!(super::harmless("a\tb\x1b[2J\r\u{9b}31m\x07\n"), "a\tb?[2J??31m?\n");
    }
}
