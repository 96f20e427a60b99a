//! Reads scripts in packetdrill's language (its grammar: `parser.y` there).

pub(crate) mod packet;

use crate::script::{Action, Call, Event, Micros, Script, Time, Value};

/// Why a script cannot be read, or not be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The line of the script.
    pub line: usize,
    /// The fault in this place.
    pub what: String,
    /// Whether the language has the feature and this runner does not.
    pub unsupported: bool,
}

type Result<T> = std::result::Result<T, Trouble>;

/// Parses a script.
///
/// # Errors
/// Returns the first line that is not understood.
pub fn parse(text: &str) -> Result<Script> {
    let mut cursor = Cursor { text, at: 0, is_v6: false, depth: 0 };
    let mut script = Script::default();
    cursor.skip();
    while cursor.takes("--") {
        let line = cursor.line();
        let name = cursor.word();
        let value = if cursor.takes("=") { cursor.until_white() } else { String::new() };
        cursor.is_v6 |= name == "ip_version" && value == "ipv6";
        script.options.push((line, name.to_owned(), value));
        cursor.skip();
    }
    if cursor.rest().starts_with('`') {
        script.setup = Some((cursor.line(), cursor.quoted("`", "`")?));
    }
    loop {
        cursor.skip();
        if cursor.rest().is_empty() {
            return Ok(script);
        }
        script.events.push(cursor.event()?);
    }
}

struct Cursor<'a> {
    text: &'a str,
    at: usize,
    /// Whether the packets of the script are those of IPv6.
    is_v6: bool,
    /// How many lists and structures enclose the value that is read.
    depth: u32,
}

/// The longest time in a script, in seconds: some days.
const SECONDS_MAX: f64 = 1e6;

/// The most nested lists and structures; more, which no script has, would use up the stack.
const DEPTH_MAX: u32 = 32;

impl<'a> Cursor<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn line(&self) -> usize {
        1 + self.text[..self.at].matches('\n').count()
    }

    fn trouble(&self, what: impl Into<String>, unsupported: bool) -> Trouble {
        Trouble { line: self.line(), what: what.into(), unsupported }
    }

    fn wrong<T>(&self, wanted: &str) -> Result<T> {
        let found: String = self.rest().chars().take_while(|c| *c != '\n').take(40).collect();
        Err(self.trouble(format!("{wanted} is missing before `{found}`"), false))
    }

    fn unsupported<T>(&self, what: &str) -> Result<T> {
        Err(self.trouble(what, true))
    }

    /// Skips white space and comments.
    fn skip(&mut self) {
        loop {
            let rest = self.rest();
            let after = rest.trim_start();
            self.at += rest.len() - after.len();
            let comment = if after.starts_with("//") || after.starts_with('#') {
                after.find('\n').unwrap_or(after.len())
            } else if after.starts_with("/*") {
                after.find("*/").map_or(after.len(), |end| end + 2)
            } else {
                return;
            };
            self.at += comment;
        }
    }

    fn takes(&mut self, token: &str) -> bool {
        self.skip();
        let found = self.rest().starts_with(token);
        self.at += if found { token.len() } else { 0 };
        found
    }

    fn expect(&mut self, token: &str) -> Result<()> {
        if self.takes(token) { Ok(()) } else { self.wrong(&format!("`{token}`")) }
    }

    fn take_while(&mut self, keep: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let len = rest.find(|c| !keep(c)).unwrap_or(rest.len());
        self.at += len;
        &rest[..len]
    }

    fn word(&mut self) -> &'a str {
        self.skip();
        self.take_while(|c| c.is_ascii_alphanumeric() || c == '_')
    }

    fn until_white(&mut self) -> String {
        self.take_while(|c| !c.is_whitespace()).to_owned()
    }

    /// Takes the next word if it is `wanted`; returns whether it was.
    fn takes_word(&mut self, wanted: &str) -> bool {
        let before = self.at;
        let found = self.word() == wanted;
        if !found {
            self.at = before;
        }
        found
    }

    fn quoted(&mut self, open: &str, close: &str) -> Result<String> {
        self.expect(open)?;
        let Some(len) = self.rest().find(close) else { return self.wrong(&format!("`{close}`")) };
        let text = self.rest()[..len].to_owned();
        self.at += len + close.len();
        Ok(text)
    }

    fn number<N: TryFrom<i64>>(&mut self) -> Result<N> {
        self.skip();
        let negative = self.rest().starts_with('-');
        self.at += usize::from(negative);
        let word = self.take_while(|c| c.is_ascii_alphanumeric());
        let value = match word.strip_prefix("0x") {
            Some(digits) => i64::from_str_radix(digits, 16),
            None => word.parse(),
        };
        let value = value.ok().map(|value| if negative { -value } else { value });
        match value.and_then(|value| N::try_from(value).ok()) {
            Some(value) => Ok(value),
            None => self.wrong("a number"),
        }
    }

    fn seconds(&mut self) -> Result<Micros> {
        self.skip();
        let rest = self.rest();
        let mut len = 0;
        for (at, c) in rest.char_indices() {
            // `0...0.1` consists of two numbers.
            let is_part = c.is_ascii_digit() || (c == '.' && !rest[at..].starts_with(".."));
            if !is_part || (c == '.' && rest[..at].contains('.')) {
                break;
            }
            len = at + 1;
        }
        match rest[..len].parse::<f64>() {
            Ok(seconds) if seconds > SECONDS_MAX => self.wrong("an earlier time"),
            Ok(seconds) => {
                self.at += len;
                Ok((seconds * 1e6).round() as Micros)
            }
            Err(_) => self.wrong("a time"),
        }
    }

    fn time(&mut self) -> Result<Time> {
        if self.takes("*") {
            return Ok(Time::Any);
        }
        let relative = self.takes("+");
        let from = self.seconds()?;
        if self.takes("~") {
            let _ = self.takes("+");
            return Ok(Time::Between(from, self.seconds()?, relative));
        }
        Ok(if relative { Time::After(from) } else { Time::At(from) })
    }

    fn event(&mut self) -> Result<Event> {
        let line = self.line();
        let time = if self.rest().starts_with('`') { Time::After(0) } else { self.time()? };
        self.skip();
        let rest = self.rest();
        let action = if rest.starts_with('<') {
            self.at += 1;
            Action::Inject(self.message()?)
        } else if rest.starts_with('>') {
            self.at += 1;
            Action::Expect(self.message()?)
        } else if rest.starts_with('`') {
            Action::Command(self.quoted("`", "`")?)
        } else if rest.starts_with("%{") {
            Action::Code(self.quoted("%{", "}%")?)
        } else {
            Action::Call(self.call()?)
        };
        Ok(Event { line, time, action })
    }

    fn call(&mut self) -> Result<Call> {
        let ends = if self.takes("...") { Some(self.seconds()?) } else { None };
        let name = self.word().to_owned();
        if name.is_empty() {
            return self.wrong("an event");
        }
        self.expect("(")?;
        let arguments = self.values(")")?;
        self.expect("=")?;
        let result = self.value()?;
        // An errno, and strerror's words in parentheses, may follow on the line.
        let rest = self.rest();
        let tail = rest.split('\n').next().unwrap_or_default();
        let tail = tail.split("//").next().unwrap_or_default();
        let errno = tail.split([' ', '\t', '(']).find(|word| !word.is_empty());
        let errno = errno.filter(|word| word.starts_with('E')).map(str::to_owned);
        self.at += tail.len();
        Ok(Call { ends, name, arguments, result, errno })
    }

    fn values(&mut self, close: &str) -> Result<Vec<Value>> {
        let mut values = Vec::new();
        while !self.takes(close) {
            values.push(self.value()?);
            let _ = self.takes(",");
        }
        Ok(values)
    }

    fn value(&mut self) -> Result<Value> {
        if self.depth == DEPTH_MAX {
            return self.wrong("the end of a list");
        }
        self.depth += 1;
        let value = self.shallow_value();
        self.depth -= 1;
        value
    }

    fn shallow_value(&mut self) -> Result<Value> {
        if self.takes("...") {
            return Ok(Value::Whatever);
        }
        if self.takes("[") {
            return Ok(Value::List(self.values("]")?));
        }
        if self.takes("{") {
            let mut fields = Vec::new();
            while !self.takes("}") {
                fields.push(self.field()?);
                let _ = self.takes(",");
            }
            return Ok(Value::Fields(fields));
        }
        self.skip();
        if self.rest().starts_with('"') {
            return Ok(Value::Text(self.text()?));
        }
        if self.rest().starts_with(|c: char| c.is_ascii_digit() || c == '-') {
            return Ok(Value::Number(self.number()?));
        }
        let mut name = self.word().to_owned();
        if name.is_empty() {
            return self.wrong("a value");
        }
        while self.takes("|") {
            name = format!("{name}|{}", self.word());
        }
        // In htons(8080) or inet_addr("192.0.2.1"), the argument counts.
        if self.takes("(") {
            let inside = self.values(")")?;
            return Ok(inside.into_iter().next().unwrap_or(Value::Whatever));
        }
        Ok(Value::Symbol(name))
    }

    /// Reads `"a" "b"`, or `"a"...`.
    fn text(&mut self) -> Result<String> {
        let mut text = self.quoted("\"", "\"")?;
        loop {
            self.skip();
            if self.takes("...") {
                continue;
            }
            if !self.rest().starts_with('"') {
                return Ok(text);
            }
            text += &self.quoted("\"", "\"")?;
        }
    }

    /// Reads `name = value`, `name(n) = value`, or a value alone.
    fn field(&mut self) -> Result<(String, Value)> {
        let before = self.at;
        let name = self.word().to_owned();
        if !name.is_empty() {
            if self.takes("(") {
                self.values(")")?;
            }
            if self.takes("=") || self.takes(":") {
                return Ok((name, self.value()?));
            }
        }
        self.at = before;
        Ok((String::new(), self.value()?))
    }
}
