//! Intents on the command line: as in files, and sizes may have a unit.

use whimbrel_access::Intents;

/// Keys whose values count bytes.
const BYTES: [&str; 4] = ["size-sent", "size-received", "bitrate-sent", "bitrate-received"];

/// `KEY=VALUE`, with sizes in plain numbers. Whether it is an intent is seen when all are read together.
pub(crate) fn pair(text: &str) -> Result<String, String> {
    let (key, value) = text.split_once('=').ok_or("write it as KEY=VALUE, as in size-received=300KB")?;
    let pair = match BYTES.contains(&key) {
        true => format!("{key}={}", bytes(value)?),
        false => text.to_owned(),
    };
    pair.parse::<Intents>().map_err(|error| error.to_string())?;
    Ok(pair)
}

/// All of them together.
pub(crate) fn all(pairs: &[String]) -> Result<Intents, String> {
    pairs.join(" ").parse().map_err(|error: whimbrel_access::IntentError| error.to_string())
}

/// `300`, `300KB` (thousands), `300KiB` (1024 each).
fn bytes(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("`{text}` is no size; write it as a number of bytes, or with KB, MB, GB, KiB, MiB or GiB");
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "B" => 1,
        "K" | "KB" | "kB" => 1000,
        "M" | "MB" => 1_000_000,
        "G" | "GB" => 1_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(unit).ok_or_else(wrong)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_other_intents_are_as_in_files() {
        assert_eq!(pair("size-received=300KB").unwrap(), "size-received=300000");
        assert_eq!(pair("size-sent=2MiB").unwrap(), "size-sent=2097152");
        assert_eq!(pair("category=bulk").unwrap(), "category=bulk");
        for wrong in
            ["bulk", "size-received=x", "size-received=-1", "size-sent=1TB", "speed=1", "category=fast"]
        {
            assert!(pair(wrong).is_err(), "{wrong}");
        }
        let twice = all(&["size-sent=1".to_owned(), "size-sent=2".to_owned()]);
        assert!(twice.unwrap_err().contains("twice"));
    }
}
