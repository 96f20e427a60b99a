//! Checks that no operation fails with a text, because its caller could neither compare the cause nor act on
//! it. An operation has an enum of causes, which `thiserror` gives their texts.

use super::tokens::{Token, tokens};

/// Returns the lines of a file that name a `Result` whose error is a text, or declare an associated type or
/// alias `Err` or `Error` that is one. The file is read as tokens, so macros are checked, too.
pub fn check(path: &str, text: &str) -> Vec<String> {
    let tokens = tokens(text);
    (0..tokens.len())
        .filter(|at| is_text(error_type(&tokens[*at..])))
        .map(|at| format!("{path}:{}: this error is a text: it wants an enum of causes", tokens[at].line))
        .collect()
}

/// Returns the error type that the tokens begin to name; empty if they name none.
fn error_type<'t, 'a>(tokens: &'t [Token<'a>]) -> &'t [Token<'a>] {
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text);
    match (text(0), text(1), text(2)) {
        ("Result", "<", _) => second_argument(&tokens[2..]),
        ("type", "Err" | "Error", "=") => {
            let len = tokens[3..].iter().position(|token| token.text == ";").unwrap_or(0);
            &tokens[3..3 + len]
        }
        _ => &[],
    }
}

/// Returns the second of the generic arguments that begin here; empty if there is none.
fn second_argument<'t, 'a>(tokens: &'t [Token<'a>]) -> &'t [Token<'a>] {
    let (mut depth, mut start) = (0, None);
    for (at, token) in tokens.iter().enumerate() {
        match token.text {
            "<" | "(" | "[" => depth += 1,
            // The end of an arrow.
            ">" if at > 0 && tokens[at - 1].text == "-" => {}
            ">" | ")" | "]" if depth > 0 => depth -= 1,
            "," | ">" if depth == 0 && start.is_some_and(|start| start < at) => {
                return &tokens[start.unwrap_or(at)..at];
            }
            "," if depth == 0 => start = Some(at + 1),
            ">" | ")" | "]" | "{" => break,
            _ => {}
        }
    }
    &[]
}

/// Returns whether a type is `String` or `str`, by whichever path or reference.
fn is_text(name: &[Token<'_>]) -> bool {
    name.last().is_some_and(|last| matches!(last.text, "String" | "str"))
}
