//! Splits a Rust file into tokens; comments, strings and characters are left out.

/// A word (identifier, keyword, number) or one punctuation character, with its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token<'a> {
    /// The text of the token, as written.
    pub text: &'a str,
    /// The number of its line, from 1.
    pub line: usize,
}

/// Returns the tokens of a file. It is lenient: a file that does not compile also yields tokens.
pub fn tokens(text: &str) -> Vec<Token<'_>> {
    let bytes = text.as_bytes();
    let mut tokens = Vec::new();
    let (mut at, mut line) = (0, 1);
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes.get(at + 1) == Some(&b'/') => find(bytes, at, b"\n"),
            b'/' if bytes.get(at + 1) == Some(&b'*') => end_of_block_comment(bytes, at),
            b'"' => end_of_string(bytes, at),
            b'r' | b'b' | b'c' if starts_string(bytes, at) => end_of_prefixed_string(bytes, at),
            b'\'' => end_of_character(bytes, at),
            byte if is_word(byte) => {
                let end = bytes[at..].iter().position(|&b| !is_word(b)).map_or(bytes.len(), |len| at + len);
                tokens.push(Token { text: &text[at..end], line });
                end
            }
            byte => {
                if byte.is_ascii_punctuation() {
                    tokens.push(Token { text: &text[at..at + 1], line });
                }
                at + 1
            }
        };
        let end = end.clamp(at + 1, bytes.len());
        line += bytes[at..end].iter().filter(|&&b| b == b'\n').count();
        at = end;
    }
    tokens
}

/// Returns whether the byte is part of a word. Letters of other scripts are, so that slices end between
/// characters.
fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

fn find(bytes: &[u8], from: usize, what: &[u8]) -> usize {
    bytes[from..].windows(what.len()).position(|window| window == what).map_or(bytes.len(), |len| from + len)
}

fn end_of_block_comment(bytes: &[u8], start: usize) -> usize {
    let (mut depth, mut at) = (0, start);
    while at + 1 < bytes.len() {
        match &bytes[at..at + 2] {
            b"/*" => (depth, at) = (depth + 1, at + 2),
            b"*/" => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    bytes.len()
}

fn end_of_string(bytes: &[u8], quote: usize) -> usize {
    let mut at = quote + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Returns whether `b"`, `r"`, `br#"` or a similar prefix starts here.
fn starts_string(bytes: &[u8], at: usize) -> bool {
    let mut end = at;
    while matches!(bytes.get(end), Some(b'r' | b'b' | b'c')) && end < at + 2 {
        end += 1;
    }
    let raw = bytes[at..end].contains(&b'r');
    while raw && bytes.get(end) == Some(&b'#') {
        end += 1;
    }
    bytes.get(end) == Some(&b'"')
}

fn end_of_prefixed_string(bytes: &[u8], at: usize) -> usize {
    let quote = find(bytes, at, b"\"");
    if !bytes[at..quote].contains(&b'r') {
        return end_of_string(bytes, quote);
    }
    let mut terminator = vec![b'"'];
    terminator.extend(bytes[at..quote].iter().filter(|&&b| b == b'#'));
    find(bytes, quote + 1, &terminator) + terminator.len()
}

/// Returns where a lifetime, label or character ends. A lifetime or label ends behind its quote, and its name
/// becomes a word; a character ends behind its second quote.
fn end_of_character(bytes: &[u8], quote: usize) -> usize {
    match bytes.get(quote + 1) {
        Some(b'\\') => find(bytes, quote + 3, b"'") + 1,
        Some(&first) => {
            let len = match first {
                0x00..=0x7f => 1,
                0x80..=0xdf => 2,
                0xe0..=0xef => 3,
                _ => 4,
            };
            if bytes.get(quote + 1 + len) == Some(&b'\'') { quote + len + 2 } else { quote + 1 }
        }
        None => quote + 1,
    }
}
