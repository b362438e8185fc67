//! Text of others, fit for this terminal: what they say must not move the cursor, change colours, hide other
//! text or ring a bell.

/// What stands for a character that is not shown.
const INSTEAD: char = '\u{fffd}';

/// The text on one line, with at most `most` characters. A character that would control the terminal, or
/// change the order of the text around it, is shown as one that stands for it.
pub(crate) fn plain(text: &str, most: usize) -> String {
    let mut plain: String = text.chars().take(most).map(shown).collect();
    if text.chars().nth(most).is_some() {
        plain.push('…');
    }
    plain
}

fn shown(c: char) -> char {
    match c {
        '\t' => ' ',
        // The pictures that Unicode has for control characters: ␛ for escape.
        '\0'..='\x1f' => char::from_u32(0x2400 + u32::from(c)).unwrap_or(INSTEAD),
        '\x7f' => '\u{2421}',
        c if c.is_control() => INSTEAD,
        // Direction, and line and paragraph ends of their own.
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{206f}' => INSTEAD,
        // Invisible: joiners are left alone, which words and emoji are made with.
        '\u{200b}'
        | '\u{2060}'..='\u{2065}'
        | '\u{feff}'
        | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e007f}' => INSTEAD,
        c => c,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_character_of_another_reaches_the_terminal_as_a_control() {
        assert_eq!(plain("\x1b[2J\x07a\r\nb\x7f\u{9b}31m", 100), "␛[2J␇a␍␊b␡\u{fffd}31m");
        assert_eq!(plain("abc\u{202e}def\u{2066}\u{200f}", 100), "abc\u{fffd}def\u{fffd}\u{fffd}");
        let all: String = ('\0'..=char::MAX).collect();
        let all = plain(&all, usize::MAX);
        assert!(!all.chars().any(char::is_control));
        assert_eq!(plain("grüße 👩‍🚀 日本\tok", 100), "grüße 👩‍🚀 日本 ok");
        assert_eq!(plain("abcdef", 3), "abc…");
    }
}
