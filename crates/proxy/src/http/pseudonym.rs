//! The name of a proxy in `Via` (RFC 9110, §7.6.3).

use hyper::Version;
use hyper::header::{HeaderMap, HeaderValue, VIA};

/// What a proxy is called there. What it adds is made once, and not for each message.
pub(super) struct Pseudonym {
    name: String,
    /// For messages of HTTP/1.0, HTTP/1.1 and HTTP/2. `None`: the name cannot stand in a field.
    lines: [Option<HeaderValue>; 3],
}

impl Pseudonym {
    pub(super) fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        let lines =
            ["1.0", "1.1", "2.0"].map(|version| HeaderValue::try_from(format!("{version} {name}")).ok());
        Self { name, lines }
    }

    /// As it stands there, without a version.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Adds this proxy to those that a message of this version came through.
    pub(super) fn add_to(&self, headers: &mut HeaderMap, version: Version) {
        let [old, usual, new] = &self.lines;
        let line = match version {
            Version::HTTP_10 => old,
            Version::HTTP_2 => new,
            _ => usual,
        };
        if let Some(line) = line {
            headers.append(VIA, line.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_says_by_which_version_it_came_and_through_whom_behind_those_before() {
        let pseudonym = Pseudonym::new("whimbrel-1");
        let mut headers = HeaderMap::new();
        headers.insert(VIA, HeaderValue::from_static("1.0 fred"));
        for version in [Version::HTTP_10, Version::HTTP_11, Version::HTTP_2] {
            pseudonym.add_to(&mut headers, version);
        }
        let lines: Vec<_> = headers.get_all(VIA).iter().collect();
        assert_eq!(lines, ["1.0 fred", "1.0 whimbrel-1", "1.1 whimbrel-1", "2.0 whimbrel-1"]);
        assert_eq!(pseudonym.name(), "whimbrel-1");
    }
}
