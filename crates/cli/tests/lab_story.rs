//! The paper's story, by programs that nobody here wrote: what runs on the phone goes on at the pc while one
//! of the parties moves from one network to another, and the server has one and the same connection.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use crate::story::{CHAT, HTTP, Running, SOCKS, Stage, length, random, wait_for};
use sha2::{Digest as _, Sha256};

/// The phone alone would need 50 seconds for it.
const SIZE: usize = 48 << 20;
/// Pictures of a film that lasts 100 seconds.
const PICTURES: usize = 2500;
const EACH_SECOND: usize = 25;

#[test]
fn a_download_goes_on_at_the_pc_while_the_phone_moves_and_the_server_accepts_one_connection() {
    if whimbrel_lab::require!() {
        goes_on_at_the_pc_while(Stage::move_phone);
    }
}

#[test]
fn a_download_goes_on_at_the_pc_while_the_pc_itself_moves_and_the_server_accepts_one_connection() {
    if whimbrel_lab::require!() {
        goes_on_at_the_pc_while(Stage::move_pc);
    }
}

#[test]
fn a_download_goes_on_at_the_pc_while_the_gateway_moves_and_the_server_accepts_one_connection() {
    if whimbrel_lab::require!() {
        goes_on_at_the_pc_while(Stage::move_gateway);
    }
}

/// A download moves from the phone to the pc at the moment at which one of the parties moves.
fn goes_on_at_the_pc_while(moves: impl FnOnce(&Stage)) {
    let stage = Stage::new();
    let bytes = random(SIZE);
    fs::write(stage.path("site/film"), &bytes).unwrap();
    let [first, second, go] = ["first", "second", "go"].map(|name| stage.path(name));
    let (url, before) = (format!("http://{HTTP}/film"), stage.accepted());
    let curl = stage.phone.command("curl").args(["-sS", "--fail", "--max-time", "300", "-o"]).arg(&first);
    let mut curl = Running::start(curl.args(["--socks5-hostname", SOCKS, &url]));
    wait_for("the download grows", || (length(&first) > 2 << 20).then_some(()));
    let id = stage.hand_over(HTTP);
    // curl on the pc begins when the test says so: who moves is elsewhere before it can hear of that.
    let script = format!(
        "until [ -e {} ]; do sleep 0.01; done; exec curl -sS --fail --max-time 300 -o {} \"$0\"",
        go.display(),
        second.display()
    );
    let mut taking = stage.take(&id, "http", &["sh", "-c", &script, "{url}"]);
    fs::write(&go, "").unwrap();
    moves(&stage);
    assert!(taking.end().success());
    // "Failure with receiving network data", or a part of a file.
    assert!(matches!(curl.end().code(), Some(56 | 18)));
    let (first, second) = (fs::read(first).unwrap(), fs::read(second).unwrap());
    assert!(!second.is_empty());
    assert_eq!(first.len() + second.len(), SIZE, "bytes were lost, or came twice");
    assert_eq!(Sha256::digest([first, second].concat()), Sha256::digest(&bytes));
    assert_eq!(stage.accepted() - before, 1, "the server's kernel counts connections");
}

/// Makes a film whose pictures each stand alone.
fn film(to: &Path) {
    let pictures = format!("testsrc=size=160x120:rate={EACH_SECOND}");
    let seconds = (PICTURES / EACH_SECOND).to_string();
    let made = Command::new("ffmpeg")
        .args(["-v", "error", "-f", "lavfi", "-i", &pictures, "-t", &seconds])
        .args(["-c:v", "mpeg2video", "-g", "1", "-q:v", "5", "-f", "mpegts"])
        .arg(to)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// How many pictures a player has shown: what it wrote last of them.
fn shown(progress: &Path) -> usize {
    let text = fs::read_to_string(progress).unwrap_or_default();
    let last = text.lines().rev().find_map(|line| line.strip_prefix("frame="));
    last.map_or(0, |figure| figure.trim().parse().unwrap_or(0))
}

#[test]
fn a_film_and_a_talk_go_on_at_the_pc_at_once_while_the_phone_moves() {
    if !whimbrel_lab::require!() {
        return;
    }
    // Not by `whimbrel_lab::skip`, which fails under CI: ffmpeg brings some eighty packages, and is not
    // installed there.
    if Command::new("ffmpeg").arg("-version").output().is_err() {
        let why = "skipped a test with a player: there is no ffmpeg (scripts/setup.sh browsers installs it)";
        let _ = writeln!(std::io::stderr(), "{why}");
        return;
    }
    let stage = Stage::new();
    film(&stage.path("site/film"));
    let [first, second, go] = ["first", "second", "go"].map(|name| stage.path(name));
    let (url, before) = (format!("http://{HTTP}/film"), stage.accepted());
    // ffmpeg knows no SOCKS: curl brings it the film, which it plays as fast as people look at it.
    let player = format!(
        "curl -sS --max-time 300 --socks5-hostname {SOCKS} {url} | ffmpeg -v quiet -nostdin -nostats \
         -progress {} -re -i - -f null -",
        first.display()
    );
    let mut player = Running::start(stage.phone.command("sh").args(["-c", &player]));
    let telnet = format!("telnet://{CHAT}");
    let talk = stage.phone.command("curl").args(["-sSN", "--socks5-hostname", SOCKS, &telnet]);
    let mut talk = Running::start(talk);
    assert_eq!(talk.line(), "welcome to the room");
    talk.types("one");
    assert_eq!(talk.line(), "you said one");
    wait_for("the film runs", || (shown(&first) > 3 * EACH_SECOND).then_some(()));
    let (film, talking) = (stage.hand_over(HTTP), stage.hand_over(CHAT));
    let script = format!(
        "until [ -e {} ]; do sleep 0.01; done; exec ffmpeg -v error -nostdin -nostats -progress {} -i \"$0\" \
         -f null -",
        go.display(),
        second.display()
    );
    let mut playing = stage.take(&film, "http", &["sh", "-c", &script, "{url}"]);
    let anew = ["curl", "-sSN", "telnet://{host}:{port}"];
    let mut at_pc = stage.take(&talking, "line", &anew);
    fs::write(&go, "").unwrap();
    stage.move_phone();
    assert_eq!(at_pc.line(), "welcome to the room", "it is greeted anew");
    at_pc.types("two");
    assert_eq!(at_pc.line(), "you said two");
    assert!(playing.end().success());
    player.end();
    let (here, there) = (shown(&first), shown(&second));
    assert!(here > 0 && there > 0, "{here} and {there} pictures");
    // The picture in which the film was cut, and what a player drops until it knows what comes.
    let all = here + there;
    assert!((PICTURES - EACH_SECOND..=PICTURES + 5).contains(&all), "{here} and {there} pictures");
    at_pc.types_no_more();
    assert_eq!(stage.accepted() - before, 2, "one connection each, as the server's kernel counts");
}
