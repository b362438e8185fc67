//! As much of XML as devices need to say what they are and what they did.
//!
//! Read are elements, whatever the prefix of their namespace is, their text, CDATA, and the entities that XML
//! itself has. Attributes, comments and declarations are skipped. Entities of the document's own are not
//! expanded and depth is not kept, so that a text takes no more memory than it has bytes.

/// No reference to a character is longer (`&#x10FFFF;` without its ampersand).
const LONGEST_REFERENCE: usize = 9;

/// The end of an element.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End<'a> {
    /// Of one that holds text alone, if any.
    Leaf(&'a str, String),
    /// Of one that holds others.
    Branch(&'a str),
}

/// The ends of all elements of a text, as they come. A text that breaks off has none behind that.
pub(super) fn ends(text: &str) -> Ends<'_> {
    Ends { rest: text, open: None }
}

/// The text of the first element of this name that has any.
pub(super) fn leaf(text: &str, name: &str) -> Option<String> {
    ends(text).find_map(|end| match end {
        End::Leaf(found, text) if found == name && !text.is_empty() => Some(text),
        _ => None,
    })
}

/// What of a text is still to be read.
pub(super) struct Ends<'a> {
    rest: &'a str,
    /// The element that was begun last, with its text so far, until another one begins or ends.
    open: Option<(&'a str, String)>,
}

impl<'a> Iterator for Ends<'a> {
    type Item = End<'a>;

    fn next(&mut self) -> Option<End<'a>> {
        loop {
            let (text, markup) = self.rest.split_once('<')?;
            if let Some((_, inner)) = &mut self.open {
                unescape(text, inner);
            }
            if let Some(cdata) = markup.strip_prefix("![CDATA[") {
                let (plain, rest) = cdata.split_once("]]>")?;
                if let Some((_, inner)) = &mut self.open {
                    inner.push_str(plain);
                }
                self.rest = rest;
            } else if let Some(comment) = markup.strip_prefix("!--") {
                let (_, rest) = comment.split_once("-->")?;
                self.rest = rest;
            } else {
                let (tag, rest) = tag(markup)?;
                self.rest = rest;
                if let Some(end) = self.after(tag) {
                    return Some(end);
                }
            }
        }
    }
}

impl<'a> Ends<'a> {
    /// What ends with a tag.
    fn after(&mut self, tag: &'a str) -> Option<End<'a>> {
        if tag.starts_with(['?', '!']) {
            return None;
        }
        if let Some(closed) = tag.strip_prefix('/') {
            let name = local_name(closed);
            return Some(match self.open.take() {
                Some((opened, text)) if opened == name => End::Leaf(name, text.trim().to_owned()),
                _ => End::Branch(name),
            });
        }
        let name = local_name(tag);
        let is_empty = tag.ends_with('/');
        self.open = (!is_empty).then(|| (name, String::new()));
        is_empty.then(|| End::Leaf(name, String::new()))
    }
}

/// What is between the brackets, and what is behind them. Attributes may have such a bracket in their quotes.
fn tag(markup: &str) -> Option<(&str, &str)> {
    let mut quote: Option<char> = None;
    let end = markup.find(|c: char| {
        match quote {
            Some(opened) if c == opened => quote = None,
            None if matches!(c, '"' | '\'') => quote = Some(c),
            None => return c == '>',
            Some(_) => {}
        }
        false
    })?;
    Some((&markup[..end], &markup[end + 1..]))
}

/// The name that a tag begins with, without a prefix.
fn local_name(tag: &str) -> &str {
    let end = tag.find(|c: char| c.is_ascii_whitespace() || c == '/').unwrap_or(tag.len());
    let name = &tag[..end];
    name.rsplit_once(':').map_or(name, |(_, local)| local)
}

/// Adds a text with what its references mean. One that means nothing stays as it is: not all devices escape
/// the ampersands of their addresses.
fn unescape(text: &str, into: &mut String) {
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('&') {
        into.push_str(before);
        let (meant, after) = reference(behind).unwrap_or(('&', behind));
        into.push(meant);
        rest = after;
    }
    into.push_str(rest);
}

/// The character that is meant behind an ampersand, and what follows it.
fn reference(behind: &str) -> Option<(char, &str)> {
    let end = behind.bytes().take(LONGEST_REFERENCE).position(|byte| byte == b';')?;
    let (name, after) = (&behind[..end], &behind[end + 1..]);
    let meant = match name {
        "amp" => '&',
        "lt" => '<',
        "gt" => '>',
        "quot" => '"',
        "apos" => '\'',
        _ => {
            let number = name.strip_prefix('#')?;
            let code = match number.strip_prefix('x') {
                Some(digits) => u32::from_str_radix(digits, 16),
                None => number.parse(),
            };
            char::from_u32(code.ok()?)?
        }
    };
    Some((meant, after))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text_of(text: &str) -> Option<String> {
        leaf(text, "a")
    }

    #[test]
    fn elements_end_in_their_order_with_their_text() {
        let text = "<?xml version=\"1.0\"?><!DOCTYPE r [<!ENTITY e \"x\">]>\n<r xmlns='u>v'>\
                    <!-- <a>no</a> --><n:a n:k=\">\"> one </n:a><b/><c k='v' /><r><a>two</a></r>tail</r>";
        let leaf = |name, text: &str| End::Leaf(name, text.to_owned());
        let all: Vec<End<'_>> = ends(text).collect();
        let inner = [leaf("a", "one"), leaf("b", ""), leaf("c", ""), leaf("a", "two")];
        let [one, empty, spaced, two] = inner;
        assert_eq!(all, [one, empty, spaced, two, End::Branch("r"), End::Branch("r")]);
    }

    #[test]
    fn the_text_of_an_element_is_what_it_means() {
        assert_eq!(text_of("<a>1 &lt; 2 &amp;&amp; &quot;&#x41;&#66;&apos;</a>").unwrap(), "1 < 2 && \"AB'");
        assert_eq!(text_of("<a>/c?<![CDATA[x=1&amp;y=<2>]]>&gt;</a>").unwrap(), "/c?x=1&amp;y=<2>>");
        assert_eq!(
            text_of("<a>/c?x=1&y=2&;&unknown;&#x110000;</a>").unwrap(),
            "/c?x=1&y=2&;&unknown;&#x110000;"
        );
        assert_eq!(text_of("<a/><a></a><a> \n</a><ab>no</ab><a>first</a><a>next</a>").unwrap(), "first");
        assert_eq!(text_of("<a>half<b>of</b>it</a>"), None, "it holds another one");
    }

    #[test]
    fn a_text_that_breaks_off_has_no_more_elements() {
        let whole = "<r><b k=\"v\">x</b><a><![CDATA[y]]><!-- z -->&amp;</a>";
        assert_eq!(text_of(whole).unwrap(), "y&");
        for end in 0..whole.len() {
            assert_eq!(text_of(&whole[..end]), None, "{end} bytes");
        }
    }

    proptest! {
        #[test]
        fn no_text_takes_more_memory_than_it_has_bytes(text in "[<>/!?&;#x1a'\"\\[\\]CDATA -]{0,200}") {
            let kept: usize = ends(&text).map(|end| match end {
                End::Leaf(_, inner) => inner.len(),
                End::Branch(_) => 0,
            }).sum();
            prop_assert!(kept <= text.len());
        }
    }
}
