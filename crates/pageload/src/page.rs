//! A page as the simulator sees it: transfers and what they wait for.

use crate::har::{Entry, Har, HarError};

/// How a HAR file is understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// Exactly as the paper's simulator reads it, oddities included.
    Paper,
    /// As it is meant: times in any zone and order, headers in any spelling, sizes from wherever they are
    /// stated.
    Modern,
}

/// What kind of object a transfer brings; decides its priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The page itself, and frames in it.
    Document,
    /// What blocks rendering: style sheets and fonts.
    Style,
    /// Scripts, and data that scripts ask for.
    Script,
    /// Images, media and all the rest.
    Other,
}

/// One object of a page.
#[derive(Debug, Clone, PartialEq)]
pub struct Transfer {
    /// Its host, as a position in [`Page::hosts`].
    pub host: u16,
    /// Whether it is fetched over TLS.
    pub tls: bool,
    /// Bytes that pass, headers included; a whole number of at least 1.
    pub size: f64,
    /// When it started in the recording, seconds.
    pub started: f64,
    /// When it ended in the recording, seconds.
    pub ended: f64,
    /// How long the recorded server took to answer, round trip included, seconds.
    pub wait: f64,
    /// What it is.
    pub kind: Kind,
    /// Its URL.
    pub url: String,
}

/// All objects of a page in order of their recorded start, and their dependencies.
#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    /// The name of its file.
    pub name: String,
    /// The hosts.
    pub hosts: Vec<String>,
    /// The objects.
    pub transfers: Vec<Transfer>,
    /// Those that wait for nothing.
    pub roots: Vec<u16>,
    children: Vec<u16>,
    /// Where each transfer's children begin in `children`; one more at the end.
    first_child: Vec<u32>,
}

impl Page {
    /// # Errors
    /// [`HarError`] if an entry can't be used, or none remains.
    pub fn new(har: &Har, reading: Reading) -> Result<Self, HarError> {
        let origin = origin(har, reading);
        let mut hosts: Vec<String> = Vec::new();
        let mut transfers = Vec::new();
        for (number, entry) in har.entries.iter().enumerate() {
            let micros = local_or_utc(entry, reading) - origin;
            if micros < 0 {
                return Err(HarError::Entry {
                    file: har.name.clone(),
                    entry: number,
                    url: entry.url.chars().take(80).collect(),
                    what: "starts before the first entry, which the paper's model does not allow".to_owned(),
                });
            }
            let size = size(entry, reading);
            if size < 1 {
                continue;
            }
            let host = host_of(&entry.url);
            let known = hosts.iter().position(|other| other == host);
            let host = known.unwrap_or_else(|| {
                hosts.push(host.to_owned());
                hosts.len() - 1
            });
            // Two roundings, as in the original: some comparisons of the dependencies hang on them.
            let start_ms = (micros as f64 / 1e6) * 1000.0;
            transfers.push(Transfer {
                host: host as u16,
                tls: entry.url.starts_with("https"),
                size: size as f64,
                started: start_ms / 1000.0,
                ended: (start_ms + entry.time) / 1000.0,
                wait: entry.wait.unwrap_or(0.0) / 1000.0,
                kind: kind(entry, number),
                url: entry.url.clone(),
            });
        }
        if transfers.is_empty() {
            let what = "no entry has a size: save the HAR with response sizes".to_owned();
            return Err(HarError::File { file: har.name.clone(), what });
        }
        transfers.sort_by(|a, b| a.started.total_cmp(&b.started));
        Ok(Self::linked(har.name.clone(), hosts, transfers))
    }

    /// The transfers that become ready when this one is complete.
    pub fn children(&self, transfer: u16) -> &[u16] {
        let at = usize::from(transfer);
        &self.children[self.first_child[at] as usize..self.first_child[at + 1] as usize]
    }

    /// All bytes of the page.
    pub fn bytes(&self) -> f64 {
        self.transfers.iter().map(|transfer| transfer.size).sum()
    }

    /// A transfer waits for the one that, in the recording, ended last before it started.
    fn linked(name: String, hosts: Vec<String>, transfers: Vec<Transfer>) -> Self {
        let mut by_end: Vec<u16> = (0..transfers.len() as u16).collect();
        by_end.sort_by(|a, b| transfers[usize::from(*a)].ended.total_cmp(&transfers[usize::from(*b)].ended));
        let ends: Vec<f64> = by_end.iter().map(|at| transfers[usize::from(*at)].ended).collect();
        let mut roots = Vec::new();
        let mut of: Vec<Vec<u16>> = vec![Vec::new(); transfers.len()];
        for (number, transfer) in transfers.iter().enumerate() {
            let before = ends.partition_point(|end| *end < transfer.started);
            if number == 0 || before == 0 {
                roots.push(number as u16);
            } else {
                of[usize::from(by_end[before - 1])].push(number as u16);
            }
        }
        let mut first_child = vec![0];
        let mut children = Vec::with_capacity(transfers.len());
        for list in &of {
            children.extend_from_slice(list);
            first_child.push(children.len() as u32);
        }
        Self { name, hosts, transfers, roots, children, first_child }
    }
}

fn origin(har: &Har, reading: Reading) -> i64 {
    let mut times = har.entries.iter().map(|entry| local_or_utc(entry, reading));
    match reading {
        Reading::Paper => times.next(),
        Reading::Modern => times.min(),
    }
    .unwrap_or(0)
}

fn local_or_utc(entry: &Entry, reading: Reading) -> i64 {
    match reading {
        Reading::Paper => entry.started.local,
        Reading::Modern => entry.started.local - entry.started.offset,
    }
}

fn size(entry: &Entry, reading: Reading) -> i64 {
    let positive = |size: Option<i64>| size.filter(|size| *size > 0);
    match reading {
        Reading::Paper => {
            let length = entry.content_length_exact as i64;
            let body = if length > 0 { length } else { positive(entry.body_size).unwrap_or(0) };
            body + entry.headers_size.unwrap_or(-1)
        }
        Reading::Modern => positive(entry.transfer_size).unwrap_or_else(|| {
            let body = positive(entry.content_length.map(|length| length as i64))
                .or(positive(entry.body_size))
                .or(positive(entry.content_size));
            body.unwrap_or(0) + positive(entry.headers_size).unwrap_or(0)
        }),
    }
}

/// The third part of the URL split at every `/`, verbatim.
fn host_of(url: &str) -> &str {
    url.split('/').nth(2).unwrap_or("")
}

fn kind(entry: &Entry, number: usize) -> Kind {
    let path = entry.url.split(['?', '#']).next().unwrap_or("");
    let end = path.rsplit('/').next().and_then(|name| name.rsplit_once('.')).map_or("", |(_, end)| end);
    let mime = entry.mime_type.as_deref().unwrap_or("");
    let is = |mimes: &[&str], ends: &[&str]| {
        mimes.iter().any(|part| mime.contains(part)) || (mime.is_empty() && ends.contains(&end))
    };
    if number == 0 || is(&["html"], &["html", "htm"]) {
        Kind::Document
    } else if is(&["css", "font"], &["css", "woff", "woff2", "ttf"]) {
        Kind::Style
    } else if is(&["javascript", "json", "ecmascript"], &["js", "json"]) {
        Kind::Script
    } else {
        Kind::Other
    }
}
