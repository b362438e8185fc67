//! `apps.toml`: which program of this user goes on with which connection. Nothing else is ever started.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::Deserialize;
use whimbrel_proxy::Destination;

use super::which::Which;
use crate::commands::take::How;
use crate::failure::Failure;

/// No such file is larger.
const MAX_FILE: u64 = 1024 * 1024;
/// The most entries.
const MAX_APPS: usize = 256;
/// What may be written in arguments, in braces.
const WORDS: [&str; 3] = ["url", "host", "port"];
/// Of the kernel: others may write a file.
const OTHERS_WRITE: u32 = 0o002;

/// The user's list.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Apps {
    #[serde(skip)]
    file: PathBuf,
    /// For entries that say nothing.
    ask: Option<bool>,
    #[serde(default)]
    app: Vec<App>,
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct App {
    #[serde(rename = "match")]
    which: Which,
    adapter: How,
    /// With `line`: so many first lines of the program are its own beginning.
    #[serde(rename = "own-lines", default)]
    own_lines: u16,
    run: Run,
    ask: Option<bool>,
}

/// A program and its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Vec<String>")]
struct Run(Vec<String>);

impl Apps {
    /// Reads the list.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub(super) fn read(file: &Path) -> Result<Self> {
        let shown = file.display();
        let wrong = |text: &str| Failure::usage(format!("{shown}{text}"));
        let opened = fs::File::open(file).map_err(|error| {
            let what = "the list of programs that may be started (`whimbrel agent --help` shows one)";
            Failure::usage(format!("cannot read {shown}, {what}: {error}"))
        })?;
        let metadata = opened.metadata().with_context(|| format!("cannot look at {shown}"))?;
        let user = rustix::process::getuid().as_raw();
        if ![user, 0].contains(&metadata.uid()) || metadata.mode() & OTHERS_WRITE != 0 {
            return Err(wrong(": others may write it, and have programs run as you; chmod go-w, and own it"));
        }
        let mut text = String::new();
        let read = opened.take(MAX_FILE + 1).read_to_string(&mut text);
        read.with_context(|| format!("cannot read {shown}"))?;
        if text.len() as u64 > MAX_FILE {
            return Err(wrong(" is larger than 1 MiB; is it the right file?"));
        }
        Self::parse(&text).map(|apps| Self { file: file.to_owned(), ..apps }).map_err(|error| wrong(&error))
    }

    /// Reads its text. Errors begin with the line.
    fn parse(text: &str) -> Result<Self, String> {
        let read: Self = toml::from_str(text).map_err(|error| {
            let start = error.span().map_or(0, |span| span.start).min(text.len());
            let line = text.bytes().take(start).filter(|byte| *byte == b'\n').count();
            let what = error.message().lines().next().unwrap_or_default();
            let key = key_of(text.lines().nth(line).unwrap_or_default()).map(|key| format!("`{key}`"));
            // Some errors name it.
            let key = key.filter(|key| !what.contains(key)).map(|key| key + ": ").unwrap_or_default();
            format!(":{}: {key}{what}", line + 1)
        })?;
        if read.app.iter().any(|app| app.own_lines > 0 && app.adapter != How::Line) {
            return Err(": `own-lines` is for entries with adapter = \"line\"".to_owned());
        }
        match read.app.len() {
            0 => Err(": there is no [[app]] in it, so that nothing could be started".to_owned()),
            1..=MAX_APPS => Ok(read),
            _ => Err(format!(": there are more than {MAX_APPS} entries")),
        }
    }

    /// How many entries there are.
    pub(super) fn len(&self) -> usize {
        self.app.len()
    }

    /// Where it is.
    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    /// The first entry for a destination, and whether it asks before it starts.
    pub(super) fn find(&self, to: &Destination) -> Option<(&App, bool)> {
        let app = self.app.iter().find(|app| app.which.matches(to))?;
        Some((app, app.ask.or(self.ask).unwrap_or(true)))
    }

    /// The first entry for a forward to this peer, of those that take bytes as they are, and whether it asks.
    pub(super) fn find_peer(&self, peer: &str) -> Option<(&App, bool)> {
        let app = self.app.iter().find(|app| app.adapter == How::Raw && app.which.is_of(peer))?;
        Some((app, app.ask.or(self.ask).unwrap_or(true)))
    }

    /// Whether all entries ask that say nothing, because the list says so.
    pub(super) fn asks(&self) -> bool {
        self.ask == Some(true)
    }
}

impl App {
    /// The program and its arguments.
    pub(super) fn words(&self) -> &[String] {
        &self.run.0
    }

    /// What people call it.
    pub(super) fn name(&self) -> &str {
        let program = self.run.0.first().map(String::as_str).unwrap_or_default();
        program.rsplit('/').next().unwrap_or(program)
    }

    /// How it begins.
    pub(super) fn how(&self) -> How {
        self.adapter
    }

    /// How many of its first lines are its own beginning.
    pub(super) fn own_lines(&self) -> u16 {
        self.own_lines
    }
}

impl TryFrom<Vec<String>> for Run {
    type Error = String;

    fn try_from(words: Vec<String>) -> Result<Self, String> {
        let (program, arguments) =
            words.split_first().ok_or("`run` is empty; write [\"PROGRAM\", \"{url}\"]")?;
        if program.is_empty() || program.contains('{') {
            return Err(format!("`run` begins with {program:?}, which is no program"));
        }
        if words.iter().any(|word| word.contains('\0')) {
            return Err("`run` has a zero byte in it".to_owned());
        }
        let braces: Vec<&str> = arguments.iter().flat_map(|word| in_braces(word)).collect();
        if let Some(other) = braces.iter().find(|word| !WORDS.contains(word)) {
            return Err(format!("`run` has {{{other}}} in it; there are {{url}}, {{host}} and {{port}}"));
        }
        if !braces.iter().any(|word| ["url", "port"].contains(word)) {
            return Err(
                "`run` has neither {url} nor {port} in it: the program could not know where".to_owned()
            );
        }
        Ok(Self(words))
    }
}

/// Single words in braces.
fn in_braces(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(word, _)| word);
    words.filter(|word| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase()))
}

/// The key on a line of TOML.
fn key_of(line: &str) -> Option<&str> {
    let key = line.split_once('=')?.0.trim();
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    Some(key).filter(|key| !key.is_empty() && key.bytes().all(fits))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    const GOOD: &str = "\
ask = false
[[app]]
match = \"films.example.org:80\"
adapter = \"http\"
run = [\"/usr/bin/mpv\", \"--\", \"{url}\"]
ask = true

[[app]]
match = \"http\"
adapter = \"http\"
run = [\"curl\", \"-o\", \"rest\", \"{url}\"]

[[app]]
match = \"any\"
adapter = \"raw\"
run = [\"nc\", \"{host}\", \"{port}\"]
";

    #[test]
    fn the_first_entry_that_matches_is_taken_and_says_whether_it_asks() {
        let apps = Apps::parse(GOOD).unwrap();
        let find = |to: &str| {
            let (app, asks) = apps.find(&to.parse().unwrap()).unwrap();
            (app.name().to_owned(), app.how(), asks)
        };
        assert_eq!(apps.len(), 3);
        assert_eq!(find("films.example.org:80"), ("mpv".to_owned(), How::Http, true));
        assert_eq!(find("example.org:80"), ("curl".to_owned(), How::Http, false));
        assert_eq!(find("example.org:6667"), ("nc".to_owned(), How::Raw, false));
        let asking = Apps::parse(&GOOD.replace("ask = false\n", "")).unwrap();
        assert!(asking.find(&"example.org:80".parse().unwrap()).unwrap().1, "without a word it asks");
        let one =
            Apps::parse("[[app]]\nmatch = \"*:1\"\nadapter = \"raw\"\nrun = [\"nc\", \"{port}\"]").unwrap();
        assert!(one.find(&"example.org:2".parse().unwrap()).is_none());
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line_and_key() {
        for (from, to, says) in [
            ("ask = true\n", "ask = \"yes\"\n", ":6: `ask`: invalid type"),
            ("ask = true\n", "aks = true\n", ":6: unknown field `aks`"),
            (
                "\"http\"\nrun = [\"curl\"",
                "\"htp\"\nrun = [\"curl\"",
                ":10: `adapter`: unknown variant `htp`",
            ),
            ("match = \"http\"", "match = \"a b\"", ":9: `match` is \"a b\""),
            ("\"rest\", \"{url}\"]", "\"{title}\", \"{url}\"]", ":11: `run` has {title} in it"),
            ("\"rest\", \"{url}\"]", "\"rest\"]", ":11: `run` has neither {url} nor {port}"),
            ("[\"curl\", \"-o\", \"rest\", \"{url}\"]", "[]", ":11: `run` is empty"),
            ("[\"curl\"", "[\"{url}\"", ":11: `run` begins with"),
            ("[\"curl\", \"-o\", \"rest\", \"{url}\"]", "\"curl {url}\"", ":11: `run`: invalid type"),
            ("match = \"any\"\n", "", "missing field `match`"),
            ("adapter = \"raw\"", "adapter = \"raw\"\nown-lines = 2", "`own-lines` is for entries with"),
            ("ask = false\n", "ask = \n", ":1: "),
        ] {
            assert!(GOOD.contains(from), "{from}");
            let error = Apps::parse(&GOOD.replacen(from, to, 1)).unwrap_err();
            assert!(error.contains(says) && !error.contains('\n'), "{to}: {error}");
        }
        assert!(Apps::parse("").unwrap_err().contains("no [[app]]"));
    }

    #[test]
    fn an_entry_says_how_many_lines_are_the_programs_own_beginning() {
        let entry =
            "[[app]]\nmatch = \"*:6667\"\nadapter = \"line\"\nrun = [\"nc\", \"{host}\", \"{port}\"]\n";
        for (more, lines) in [("", 0), ("own-lines = 2\n", 2)] {
            let apps = Apps::parse(&format!("{entry}{more}")).unwrap();
            let (app, _) = apps.find(&"example.org:6667".parse().unwrap()).unwrap();
            assert_eq!((app.how(), app.own_lines()), (How::Line, lines));
        }
    }

    #[test]
    fn an_entry_may_be_for_a_player_that_goes_on_in_a_film() {
        let list = GOOD.replacen("adapter = \"http\"", "adapter = \"http-time\"", 1);
        let apps = Apps::parse(&list).unwrap();
        let (app, _) = apps.find(&"films.example.org:80".parse().unwrap()).unwrap();
        assert_eq!(app.how(), How::HttpTime);
    }

    #[test]
    fn a_list_that_others_may_write_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("apps.toml");
        assert!(Apps::read(&file).unwrap_err().to_string().contains("cannot read"));
        fs::write(&file, GOOD).unwrap();
        let mode = |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        mode(0o644);
        assert_eq!(Apps::read(&file).unwrap().file(), file);
        mode(0o646);
        assert!(Apps::read(&file).unwrap_err().to_string().contains("others may write it"));
        mode(0o600);
        fs::write(&file, "#".repeat(usize::try_from(MAX_FILE).unwrap() + 1)).unwrap();
        assert!(Apps::read(&file).unwrap_err().to_string().contains("larger than 1 MiB"));
    }
}
