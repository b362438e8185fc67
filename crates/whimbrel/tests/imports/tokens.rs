//! Rust source as tokens, as far as imports need it: names, `::` and single characters. Comments, strings,
//! characters, lifetimes and numbers are left out.

/// One token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    pub(crate) text: &'a str,
    /// Counted from 1.
    pub(crate) line: usize,
}

impl Token<'_> {
    /// Whether it is a name or a keyword.
    pub(crate) fn is_name(&self) -> bool {
        self.text.starts_with(begins_name)
    }
}

fn begins_name(c: char) -> bool {
    c.is_alphabetic() || c == '_'
}

fn goes_on(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// All tokens of a file.
pub(crate) fn tokens(text: &str) -> Vec<Token<'_>> {
    let (mut found, mut rest, mut line) = (Vec::new(), text, 1);
    while let Some(first) = rest.chars().next() {
        let (length, is_token) = next(rest, first);
        let (taken, after) = rest.split_at(length);
        if is_token {
            found.push(Token { text: taken.strip_prefix("r#").unwrap_or(taken), line });
        }
        line += taken.matches('\n').count();
        rest = after;
    }
    found
}

/// How long the next piece is, and whether it is a token.
fn next(rest: &str, first: char) -> (usize, bool) {
    if rest.starts_with("//") {
        return (rest.find('\n').unwrap_or(rest.len()), false);
    }
    if rest.starts_with("/*") {
        return (comment(rest), false);
    }
    if let Some(length) = raw_string(rest) {
        return (length, false);
    }
    match first {
        '"' => (string(rest), false),
        '\'' => (quoted(rest), false),
        _ if rest.starts_with("r#") => (2 + name(&rest[2..]), true),
        _ if begins_name(first) => (name(rest), true),
        _ if first.is_ascii_digit() => (name(rest), false),
        _ if rest.starts_with("::") => (2, true),
        _ => (first.len_utf8(), !first.is_whitespace()),
    }
}

fn name(rest: &str) -> usize {
    rest.find(|c| !goes_on(c)).unwrap_or(rest.len())
}

/// A comment may have others inside.
fn comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        let (begins, ends) = (rest[at..].starts_with("/*"), rest[at..].starts_with("*/"));
        depth = if begins { depth + 1 } else { depth - usize::from(ends) };
        at += if begins || ends { 2 } else { rest[at..].chars().next().map_or(1, char::len_utf8) };
        if depth == 0 {
            break;
        }
    }
    at
}

/// The length of a raw string, if one begins here.
fn raw_string(rest: &str) -> Option<usize> {
    let prefix = ["r", "br", "cr"].into_iter().find(|prefix| {
        let after = rest.strip_prefix(prefix);
        after.is_some_and(|after| after.trim_start_matches('#').starts_with('"'))
    })?;
    let inside = &rest[prefix.len()..];
    let hashes = inside.find('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let begin = prefix.len() + hashes + 1;
    Some(rest[begin..].find(&end).map_or(rest.len(), |at| begin + at + end.len()))
}

fn string(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => {
                chars.next();
            }
            '"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// A character, or a lifetime.
fn quoted(rest: &str) -> usize {
    let mut chars = rest.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), Some((at, _))) => {
            // What was escaped may be a quote itself.
            let behind = at + rest[at..].chars().next().map_or(1, char::len_utf8);
            rest[behind..].find('\'').map_or(rest.len(), |end| behind + end + 1)
        }
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 1 + name(&rest[1..]),
    }
}

#[test]
fn what_is_no_code_is_left_out() {
    let text = r####"
        use a::b; // crate::x
        /* crate::x /* */ crate::x */
        let c = 'x'; let q = '\''; let l: &'a str = "crate::x \" crate::x"; let n = 0x1f;
        let r = r#"crate::x"crate::x"#; let d = b"crate::x"; r#type::e
    "####;
    let all: Vec<&str> = tokens(text).iter().map(|token| token.text).collect();
    let expected = "use a :: b ; let c = ; let q = ; let l : & str = ; let n = ; \
        let r = ; let d = b ; type :: e";
    assert_eq!(all.join(" "), expected);
    let line = tokens(text).iter().find(|token| token.text == "type").map(|token| token.line);
    assert_eq!(line, Some(5));
}
