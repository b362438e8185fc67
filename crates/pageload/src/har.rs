//! Reading HAR files (HTTP Archive 1.1 and 1.2), as browsers really write them.

use serde::{Deserialize, Deserializer};
use std::path::Path;

/// A larger file is refused: real ones, even with contents, stay below.
pub const MAX_BYTES: u64 = 512 << 20;
/// A page with more entries is refused.
pub const MAX_ENTRIES: usize = 20_000;

/// A recorded page: its requests in file order.
#[derive(Debug, Clone, PartialEq)]
pub struct Har {
    /// The name of the file, for messages and results.
    pub name: String,
    /// The requests.
    pub entries: Vec<Entry>,
}

/// What the simulator uses of one request.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// When it started.
    pub started: Started,
    /// How long it took, milliseconds.
    pub time: f64,
    /// The address.
    pub url: String,
    /// `Content-Length` spelt exactly so (0 if there is none).
    pub content_length_exact: u64,
    /// `Content-Length` in any spelling.
    pub content_length: Option<u64>,
    /// `response.bodySize`; negative or missing is unknown.
    pub body_size: Option<i64>,
    /// `response._transferSize` (Chrome): the bytes that passed, headers included.
    pub transfer_size: Option<i64>,
    /// `response.content.size`: the body after decoding.
    pub content_size: Option<i64>,
    /// `response.headersSize`; -1 or missing is unknown.
    pub headers_size: Option<i64>,
    /// `response.content.mimeType`.
    pub mime_type: Option<String>,
    /// `timings.wait`, milliseconds.
    pub wait: Option<f64>,
}

/// A moment of a recording, in microseconds from 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Started {
    /// As the clock on the wall showed it.
    pub local: i64,
    /// How much that clock was ahead of UTC.
    pub offset: i64,
}

/// Why a HAR file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum HarError {
    /// It can't be read at all.
    #[error("{file}: {error}")]
    Read {
        /// The file.
        file: String,
        /// Why.
        error: std::io::Error,
    },
    /// It is not JSON, or not a HAR.
    #[error("{file}: not a HAR file: {error}")]
    Json {
        /// The file.
        file: String,
        /// What the JSON reader says, with line and column.
        error: serde_json::Error,
    },
    /// The file as a whole does not serve.
    #[error("{file}: {what}")]
    File {
        /// The file.
        file: String,
        /// What is wrong.
        what: String,
    },
    /// One entry does not serve.
    #[error("{file}: entry {entry} ({url}): {what}")]
    Entry {
        /// The file.
        file: String,
        /// Its position in `log.entries`, from 0.
        entry: usize,
        /// Its URL, shortened.
        url: String,
        /// What is wrong.
        what: String,
    },
}

#[derive(Deserialize)]
struct Document {
    log: Log,
}

#[derive(Deserialize)]
struct Log {
    entries: Vec<RawEntry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawEntry {
    started_date_time: String,
    #[serde(default)]
    time: Option<f64>,
    request: RawRequest,
    #[serde(default)]
    response: RawResponse,
    #[serde(default)]
    timings: RawTimings,
}

#[derive(Deserialize)]
struct RawRequest {
    url: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawResponse {
    #[serde(deserialize_with = "null_is_empty")]
    headers: Vec<RawHeader>,
    #[serde(deserialize_with = "whole")]
    headers_size: Option<i64>,
    #[serde(deserialize_with = "whole")]
    body_size: Option<i64>,
    #[serde(rename = "_transferSize", deserialize_with = "whole")]
    transfer_size: Option<i64>,
    content: Option<RawContent>,
}

#[derive(Deserialize)]
struct RawHeader {
    name: String,
    #[serde(default)]
    value: String,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RawContent {
    #[serde(deserialize_with = "whole")]
    size: Option<i64>,
    mime_type: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RawTimings {
    blocked: Option<f64>,
    dns: Option<f64>,
    connect: Option<f64>,
    send: Option<f64>,
    wait: Option<f64>,
    receive: Option<f64>,
}

fn null_is_empty<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<RawHeader>, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// Sizes are whole numbers; some writers put them as `12.0` or `null`.
fn whole<'de, D: Deserializer<'de>>(from: D) -> Result<Option<i64>, D::Error> {
    Ok(Option::<f64>::deserialize(from)?.map(|number| number as i64))
}

impl Har {
    /// # Errors
    /// [`HarError`], which names the file, and the entry where one is to blame.
    pub fn read(path: &Path) -> Result<Self, HarError> {
        let file = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let failed = |error| HarError::Read { file: path.display().to_string(), error };
        let length = std::fs::metadata(path).map_err(failed)?.len();
        if length > MAX_BYTES {
            let what = format!("{length} bytes; at most {MAX_BYTES} are read. Save it without contents.");
            return Err(HarError::File { file, what });
        }
        Self::parse(&file, &std::fs::read(path).map_err(failed)?)
    }

    /// Read a HAR from memory; `name` goes into messages and results.
    ///
    /// # Errors
    /// As [`Har::read`].
    pub fn parse(name: &str, bytes: &[u8]) -> Result<Self, HarError> {
        // Firefox and Fiddler begin with a byte order mark.
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        let document: Document =
            serde_json::from_slice(bytes).map_err(|error| HarError::Json { file: name.to_owned(), error })?;
        let raw = document.log.entries;
        if raw.is_empty() || raw.len() > MAX_ENTRIES {
            let what = format!("log.entries has {} entries; from 1 to {MAX_ENTRIES} can be used", raw.len());
            return Err(HarError::File { file: name.to_owned(), what });
        }
        let entries = raw
            .into_iter()
            .enumerate()
            .map(|(number, raw)| {
                let url = raw.request.url.chars().take(80).collect();
                entry(raw).map_err(|what| HarError::Entry { file: name.to_owned(), entry: number, url, what })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { name: name.to_owned(), entries })
    }
}

fn entry(raw: RawEntry) -> Result<Entry, String> {
    let started = Started::parse(&raw.started_date_time).ok_or_else(|| {
        format!(
            "startedDateTime is `{}`; it should look like 2017-02-11T09:36:22.868Z",
            raw.started_date_time.chars().take(40).collect::<String>()
        )
    })?;
    let time = raw.time.or_else(|| raw.timings.sum()).ok_or("neither `time` nor `timings` is there")?;
    if !(0.0..=1e9).contains(&time) {
        return Err(format!("`time` is {time}; it should be milliseconds from 0 to 10^9"));
    }
    let length = |exact: bool| -> Result<Option<u64>, String> {
        let is_it = |header: &&RawHeader| {
            header.name == "Content-Length" || (!exact && header.name.eq_ignore_ascii_case("content-length"))
        };
        raw.response.headers.iter().find(is_it).map(|header| parse_length(&header.value)).transpose()
    };
    let sizes = [raw.response.headers_size, raw.response.body_size, raw.response.transfer_size];
    if sizes.into_iter().flatten().any(|size| size > MAX_SIZE) {
        return Err(format!("a size is beyond {MAX_SIZE} bytes"));
    }
    let content = raw.response.content.as_ref();
    Ok(Entry {
        started,
        time,
        content_length_exact: length(true)?.unwrap_or(0),
        content_length: length(false)?,
        body_size: raw.response.body_size,
        transfer_size: raw.response.transfer_size,
        content_size: content.and_then(|content| content.size),
        headers_size: raw.response.headers_size,
        mime_type: content.and_then(|content| content.mime_type.clone()),
        wait: raw.timings.wait.filter(|wait| wait.is_finite() && *wait >= 0.0),
        url: raw.request.url,
    })
}

/// Sums of sizes stay exact in binary64.
const MAX_SIZE: i64 = 1 << 40;

fn parse_length(text: &str) -> Result<u64, String> {
    match text.trim().parse::<i64>() {
        Ok(length) if length <= MAX_SIZE => Ok(u64::try_from(length).unwrap_or(0)),
        _ => Err(format!(
            "Content-Length is `{}`; it should be a number",
            text.chars().take(40).collect::<String>()
        )),
    }
}

impl RawTimings {
    fn sum(&self) -> Option<f64> {
        let parts = [self.blocked, self.dns, self.connect, self.send, self.wait, self.receive];
        let known: Vec<f64> = parts.into_iter().flatten().filter(|part| *part >= 0.0).collect();
        if known.is_empty() { None } else { Some(known.iter().sum()) }
    }
}

impl Started {
    /// `YYYY-MM-DDThh:mm:ss`, a fraction if there is one, and `Z`, `±hh:mm`, `±hhmm` or nothing.
    fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        let number = |from: usize, to: usize| -> Option<i64> {
            let digits = text.get(from..to)?;
            if digits.bytes().all(|byte| byte.is_ascii_digit()) { digits.parse().ok() } else { None }
        };
        let marks = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
        if marks.iter().any(|(at, mark)| bytes.get(*at) != Some(mark)) {
            return None;
        }
        let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
        let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
        let plausible = (1..=12).contains(&month)
            && (1..=31).contains(&day)
            && (0..24).contains(&hour)
            && (0..60).contains(&minute)
            && (0..=60).contains(&second);
        if !plausible {
            return None;
        }
        let (micros, rest) = fraction(text.get(19..)?)?;
        let seconds = days_from_civil(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
        Some(Self { local: seconds * 1_000_000 + micros, offset: zone(rest)? * 60_000_000 })
    }
}

/// The microseconds of a leading `.f…`, and what follows.
fn fraction(text: &str) -> Option<(i64, &str)> {
    let Some(digits) = text.strip_prefix('.') else { return Some((0, text)) };
    let end = digits.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(digits.len());
    if end == 0 {
        return None;
    }
    let micros = digits[..end].bytes().chain(std::iter::repeat(b'0')).take(6);
    Some((micros.fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0')), &digits[end..]))
}

/// The minutes ahead of UTC.
fn zone(text: &str) -> Option<i64> {
    if text.is_empty() || text == "Z" || text == "z" {
        return Some(0);
    }
    let sign = match text.as_bytes()[0] {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let digits: String = text[1..].chars().filter(|c| *c != ':').collect();
    if digits.len() != 4 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(sign * (digits[..2].parse::<i64>().ok()? * 60 + digits[2..].parse::<i64>().ok()?))
}

/// Days from 1970-01-01 in the Gregorian calendar.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year - era * 400;
    let of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn micros(text: &str) -> Option<i64> {
        Started::parse(text).map(|started| started.local - started.offset)
    }

    #[test]
    fn times_of_all_browsers_are_understood() {
        assert_eq!(micros("1970-01-02T00:00:00.5+00:00"), Some(86_400_500_000));
        assert_eq!(micros("2000-03-01T00:00:00Z"), Some(951_868_800_000_000));
        assert_eq!(micros("2000-03-01T01:00:00.000001+01:00"), Some(951_868_800_000_001));
        assert_eq!(micros("2000-02-29T23:00:00.1234567-0100"), Some(951_868_800_123_456));
        assert_eq!(micros("2000-03-01T00:00:00"), Some(951_868_800_000_000));
    }

    #[test]
    fn nonsense_times_are_refused() {
        for text in [
            "",
            "2000",
            "2000-13-01T00:00:00Z",
            "2000-01-01T00:00:00.Z",
            "2000-01-01T00:00:00+1",
            "2000-01-01 00:00:00",
        ] {
            assert_eq!(micros(text), None, "{text}");
        }
    }

    #[test]
    fn an_error_names_the_file_and_the_entry() {
        let har = br#"{"log":{"entries":[
            {"startedDateTime":"2017-02-11T09:36:22Z","time":1,"request":{"url":"http://a/"},"response":{}},
            {"startedDateTime":"yesterday","time":1,"request":{"url":"http://b/x"},"response":{}}]}}"#;
        let message = Har::parse("page.har", har).map_err(|error| error.to_string());
        assert!(
            matches!(&message, Err(text) if text.starts_with("page.har: entry 1 (http://b/x): startedDateTime is `yesterday`")),
            "{message:?}"
        );
    }

    #[test]
    fn missing_sizes_and_a_byte_order_mark_are_no_error() {
        let har = b"\xef\xbb\xbf{\"log\":{\"entries\":[{\"startedDateTime\":\"2017-02-11T09:36:22Z\",\"request\":{\"url\":\"http://a/\"},\
            \"response\":{\"headersSize\":null,\"content\":{\"size\":12.0}},\"timings\":{\"wait\":2,\"receive\":3,\"dns\":-1}}]}}";
        let entry = Har::parse("page.har", har).unwrap().entries.remove(0);
        assert_eq!(
            (entry.time, entry.content_size, entry.body_size, entry.wait),
            (5.0, Some(12), None, Some(2.0))
        );
    }
}
