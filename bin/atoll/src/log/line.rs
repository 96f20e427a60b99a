//! A piece of text in the log: bounded, and without anything that a terminal obeys.

use std::fmt::{self, Write};

/// Longest text of an event in bytes; a longer one is cut. With its newline and a notice before it, a line
/// goes into a pipe as a whole (PIPE_BUF, pipe(7)).
pub const LINE_MAX: usize = 1000;

/// A line that is being composed, possibly of untrusted text.
#[derive(Clone, Debug)]
pub struct Line {
    text: String,
    max: usize,
    is_cut: bool,
}

impl Line {
    /// Creates an empty line of at most `max` bytes.
    pub fn new(max: usize) -> Line {
        Line { text: String::with_capacity(max.min(256)), max, is_cut: false }
    }

    /// Adds arbitrary bytes, escaped where they are not printable.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        for chunk in bytes.utf8_chunks() {
            let _ = self.write_str(chunk.valid());
            for byte in chunk.invalid() {
                self.push_piece(format_args!("\\x{byte:02x}"));
            }
        }
    }

    /// Adds a piece as a whole, or cuts the line before it.
    fn push_piece(&mut self, piece: impl fmt::Display) {
        let before = self.text.len();
        let _ = write!(self.text, "{piece}");
        if self.is_cut || self.text.len() > self.max {
            self.text.truncate(before);
            self.is_cut = true;
        }
    }

    /// Returns the text, with "..." if it was cut.
    pub fn finish(mut self) -> String {
        if self.is_cut {
            self.text.push_str("...");
        }
        self.text
    }
}

impl Write for Line {
    /// Adds text. Characters that are not printable are escaped as in Rust (`\n`, `\u{1b}`), and so are marks
    /// that change the direction of text. Escaping again changes nothing.
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            if self.is_cut {
                break;
            }
            match character {
                '"' | '\'' | '\\' => self.push_piece(character),
                _ => self.push_piece(character.escape_debug()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line_of(bytes: &[u8]) -> String {
        let mut line = Line::new(LINE_MAX);
        line.push_bytes(bytes);
        line.finish()
    }

    #[test]
    fn nothing_that_a_terminal_obeys_gets_into_a_line() {
        assert_eq!(line_of(b"replica 0: \"C:\\x\" it's up"), "replica 0: \"C:\\x\" it's up");
        let all: Vec<u8> = (0..=255).collect();
        let line = line_of(&all);
        assert!(line.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{line}");
        assert_eq!(line_of(line.as_bytes()), line);
        assert_eq!(line_of(b"\x1b[2J\r\nforged\xff"), "\\u{1b}[2J\\r\\nforged\\xff");
        // These are a C1 control, a line separator, and a mark for text from right to left.
        assert_eq!(line_of("\u{9b}\u{2028}\u{202e}ü".as_bytes()), "\\u{9b}\\u{2028}\\u{202e}ü");
    }

    #[test]
    fn a_line_ends_where_it_is_too_long() {
        for text in
            [vec![b'x'; 100_000], vec![0; 100_000], vec![0xff; 100_000], "é".repeat(50_000).into_bytes()]
        {
            let line = line_of(&text);
            assert!(
                line.len() <= LINE_MAX + 3 && line.len() > LINE_MAX - 10 && line.ends_with("..."),
                "{line}"
            );
        }
        let whole = line_of(&[b'x'; LINE_MAX]);
        assert!(whole.len() == LINE_MAX && !whole.contains("..."), "{whole}");
    }
}
