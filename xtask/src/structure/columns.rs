//! Checks that lines fit a window: code, comments and documents have at most 110 columns; pictures, examples,
//! tables and raw strings may have more.

/// The most columns of a line.
const COLUMNS_MAX: usize = 110;

/// Returns the lines of a file that are too long. `path` is relative to the root; its extension determines
/// the kind of text.
pub fn check(path: &str, text: &str) -> Vec<String> {
    let is_document = path.ends_with(".md");
    let (mut violations, mut is_picture) = (Vec::new(), false);
    let mut too_long = |number: u32, line: &str, what| {
        let columns = line.chars().count();
        if columns > COLUMNS_MAX {
            violations
                .push(format!("{path}:{number}: {columns} columns{what}, and {COLUMNS_MAX} are enough"));
        }
    };
    for (line, number) in text.lines().zip(1..) {
        let prose = if is_document { Some(line) } else { comment(line) };
        let Some(prose) = prose else {
            // A picture ends with its comment.
            is_picture = false;
            // Nothing can be put into a raw string to wrap it.
            if !line.contains("r#\"") {
                too_long(number, line, "");
            }
            continue;
        };
        let prose = prose.trim();
        if prose.starts_with("```") {
            is_picture = !is_picture;
        }
        // Each table row, list of requirements covered by a test, and listed exception is one line.
        let may_be_long =
            is_picture || ["|", "structure: ", "covers: ", "["].iter().any(|start| prose.starts_with(start));
        if !may_be_long && prose.contains(' ') {
            too_long(number, line, " of prose");
        }
    }
    violations
}

/// Returns the text of a line that is only a comment.
fn comment(line: &str) -> Option<&str> {
    Some(line.trim_start().strip_prefix("//")?.trim_start_matches(['/', '!']))
}
