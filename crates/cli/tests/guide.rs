//! `docs/guide.md`, step by step: each block of commands is copied out of the document and run on machines of
//! the lab, and what is shown under a command must be what it says.
//!
//! In the document, `laptop$ ` begins a command of the machine `laptop`; the lines below it, up to the next
//! command, are its output. `…` stands for any text within a line, and on a line of its own for any lines.
//! Words of `LEARNT` stand for what is different each time: the first time in an output they are learnt, and
//! later they are what was learnt. The last command of a block ```` ```console stays ```` goes on running. A
//! block without a command is what that one says later. Comments `<!-- guide: ACTION -->` are done by the
//! test where the text tells the reader to do something with hands.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use crate::stage::{self, LIMIT, Running, Stage};

const GUIDE: &str = include_str!("../../../docs/guide.md");
const EXAMPLE: &str = include_str!("../examples/clock.rs");

/// What is different each time.
const LEARNT: [&str; 6] = ["SERVICE", "LAPTOP-ID", "HOME-ID", "CODE", "TICKET", "DIGEST"];
/// What the test has in another place than a reader: the user of the test's sshd.
const ELSEWHERE: [(&str, &str); 1] = [(" ada@ssh.", " root@ssh.")];

/// A part of the document that something is done with.
#[derive(Debug)]
enum Part {
    Command {
        host: String,
        script: String,
        shown: Vec<String>,
        stays: bool,
    },
    /// What the command that was started last says later.
    More(Vec<String>),
    Action(String),
    Program(String),
}

fn parts(text: &str) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(action) = line.strip_prefix("<!-- guide: ").and_then(|rest| rest.strip_suffix(" -->")) {
            parts.push(Part::Action(action.to_owned()));
        } else if let Some(kind) = line.strip_prefix("```") {
            let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            match kind {
                "console" => parts.extend(commands(&block, false)),
                "console stays" => parts.extend(commands(&block, true)),
                "rust" => parts.push(Part::Program(block.join("\n") + "\n")),
                "toml" => {}
                "text" => parts.push(Part::More(block.iter().map(|line| (*line).to_owned()).collect())),
                other => panic!("a block of the unknown kind {other:?} in the guide"),
            }
        }
    }
    parts
}

fn commands(block: &[&str], stays: bool) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for line in block {
        let prompt = line.split_once("$ ").filter(|(host, _)| host.chars().all(|c| c.is_ascii_lowercase()));
        match (prompt, parts.last_mut()) {
            (Some((host, script)), _) => parts.push(Part::Command {
                host: host.to_owned(),
                script: script.to_owned(),
                shown: Vec::new(),
                stays: false,
            }),
            (None, Some(Part::Command { script, shown, .. })) => {
                if script.ends_with('\\') {
                    *script += &format!("\n{line}");
                } else {
                    shown.push((*line).to_owned());
                }
            }
            (None, Some(Part::More(shown))) => shown.push((*line).to_owned()),
            (None, _) => parts.push(Part::More(vec![(*line).to_owned()])),
        }
    }
    if let Some(Part::Command { stays: last, .. }) = parts.last_mut() {
        *last = stays;
    }
    parts
}

/// What was learnt so far.
type Known = BTreeMap<&'static str, String>;

/// Whether a line is as it is shown. What it teaches is put into `known`.
fn is_as_shown(shown: &str, line: &str, known: &mut Known) -> bool {
    let next = LEARNT.iter().filter_map(|word| Some((shown.find(word)?, *word))).min();
    let gap = shown.find('…');
    match (next, gap) {
        (Some((at, word)), gap) if gap.is_none_or(|gap| at < gap) => {
            let Some(rest) = line.strip_prefix(&shown[..at]) else { return false };
            let behind = &shown[at + word.len()..];
            if let Some(value) = known.get(word) {
                return rest
                    .strip_prefix(value.as_str())
                    .is_some_and(|rest| is_as_shown(behind, rest, &mut known.clone()));
            }
            let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
            let stop = behind.chars().next().filter(|stop| !stop.is_whitespace() && *stop != '…');
            let end = stop.and_then(|stop| rest[..end].find(stop)).unwrap_or(end);
            let value = rest[..end].to_owned();
            let fits = !value.is_empty() && is_as_shown(behind, &rest[end..], known);
            if fits {
                known.insert(word, value);
            }
            fits
        }
        (_, Some(gap)) => {
            let Some(rest) = line.strip_prefix(&shown[..gap]) else { return false };
            let behind = &shown[gap + '…'.len_utf8()..];
            let places = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
            places.into_iter().any(|at| is_as_shown(behind, &rest[at..], known))
        }
        (None, None) | (Some(_), None) => shown == line,
    }
}

/// The same line of somebody who has moved once: on a busy machine a move may take a second attempt, which
/// counts.
fn moved_once(line: &str) -> String {
    let Some((begin, count)) = line.rsplit_once(", moved ") else { return line.to_owned() };
    let has_moved =
        count.strip_suffix(" times").and_then(|count| count.parse().ok()).is_some_and(|n: u32| n > 0);
    if has_moved { format!("{begin}, moved 1 times") } else { line.to_owned() }
}

/// Reads lines until all that is shown has come.
#[track_caller]
fn expect(running: &mut Running, shown: &[String], known: &mut Known, what: &str) {
    let mut said: Vec<String> = Vec::new();
    let mut left = shown.iter().map(String::as_str).filter(|line| !line.is_empty()).peekable();
    let mut skips = false;
    // A command that goes on saying something else must not be listened to forever.
    let end = Instant::now() + LIMIT;
    while let Some(wanted) = left.peek().copied() {
        if wanted == "…" {
            skips = true;
            left.next();
            continue;
        }
        match running.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(line) if line.is_empty() => {}
            Ok(line) => {
                let fits =
                    is_as_shown(wanted, &line, known) || is_as_shown(wanted, &moved_once(&line), known);
                said.push(line);
                if fits {
                    left.next();
                    skips = false;
                }
                assert!(fits || skips, "{what}\nshows: {wanted}\nbut it says: {}", said.join("\n"));
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                panic!("{what}\nshows: {wanted}\nbut all it says is: {}", said.join("\n"))
            }
        }
    }
}

/// Takes what has been learnt, and what this test has elsewhere, for the words of the document.
fn filled_in(script: &str, known: &Known) -> String {
    let script = known.iter().fold(script.to_owned(), |text, (word, value)| text.replace(word, value));
    if let Some(word) = LEARNT.iter().find(|word| script.contains(*word)) {
        panic!("`{script}` uses {word}, which no output before it shows");
    }
    ELSEWHERE.iter().fold(script, |text, (theirs, ours)| text.replace(theirs, ours))
}

#[test]
fn every_step_of_the_guide_works_as_it_is_written() {
    if !whimbrel_lab::require!() || !stage::possible() {
        return;
    }
    let stage = Stage::new();
    // `cargo run` is the example with the same text, which the test builds beside itself.
    let built = whimbrel_lab::example(env!("CARGO_PKG_NAME"), "clock");
    let run = format!(
        "test \"$1\" = run || exit 1; shift; test \"$1\" = -- && shift; exec {} \"$@\"",
        built.display()
    );
    stage.program("cargo", &run);
    let mut known = Known::new();
    let mut running: Vec<(Running, String)> = Vec::new();
    let mut commands = 0;
    for part in parts(GUIDE) {
        match part {
            Part::Command { host, script, shown, stays } => {
                commands += 1;
                let script = filled_in(&script, &known);
                let what = format!("{host}$ {script}");
                let mut process = stage.start(&host, &script);
                expect(&mut process, &shown, &mut known, &what);
                if stays {
                    running.push((process, what));
                    continue;
                }
                let (code, rest) = process.finish();
                let may_say_more = shown.last().is_some_and(|line| line == "…");
                assert_eq!(code, Some(0), "{what}\n{}", rest.join("\n"));
                let rest: Vec<_> = rest.iter().filter(|line| !line.is_empty()).collect();
                assert!(may_say_more || rest.is_empty(), "{what}\nsays more than is shown: {rest:?}");
            }
            Part::More(shown) => {
                let (process, what) = running.last_mut().unwrap();
                expect(process, &shown, &mut known, what);
            }
            Part::Action(action) => match action.split_once(' ').unwrap_or((&action, "")) {
                ("unplug", interface) => stage.unplug(interface),
                ("plug", interface) => stage.plug(interface),
                ("wait", milliseconds) => {
                    std::thread::sleep(Duration::from_millis(milliseconds.parse().unwrap()))
                }
                ("until", text) => until_status_has(&stage, text),
                ("end", _) => {
                    let (mut process, what) = running.pop().unwrap();
                    let (code, _) = process.finish();
                    assert_eq!(code, Some(0), "{what}");
                }
                _ => panic!("the test cannot {action:?}"),
            },
            Part::Program(text) => {
                assert_eq!(text, program(), "the guide's program is not examples/clock.rs")
            }
        }
    }
    assert!(commands > 15, "only {commands} commands were found");
}

/// Waits for what a reader would find a moment later.
#[track_caller]
fn until_status_has(stage: &Stage, text: &str) {
    let start = Instant::now();
    loop {
        let (_, lines) = stage.start("laptop", "whimbrel status").finish();
        if lines.iter().any(|line| line.contains(text)) {
            return;
        }
        assert!(start.elapsed() < LIMIT, "`whimbrel status` never has {text}: {lines:#?}");
    }
}

/// The example without the comment at its top.
fn program() -> String {
    EXAMPLE
        .lines()
        .skip_while(|line| line.starts_with("//!") || line.is_empty())
        .fold(String::new(), |text, line| text + line + "\n")
}

#[test]
fn what_is_shown_is_compared() {
    let mut known = Known::new();
    assert!(is_as_shown("made …, id LAPTOP-ID", "made a key, id abc", &mut known));
    assert_eq!(known["LAPTOP-ID"], "abc");
    assert!(is_as_shown("LAPTOP-ID is here", "abc is here", &mut known));
    for (shown, line) in [("LAPTOP-ID is here", "abd is here"), ("a … c", "a b"), ("a", "a b"), ("CODE", "")]
    {
        assert!(!is_as_shown(shown, line, &mut known), "{shown} {line}");
    }
    assert!(is_as_shown("(CODE)", "(one-two)", &mut known));
    assert_eq!(known["CODE"], "one-two");
}
