//! A film that is under way on the phone goes on in a player at the desk: a real server of HTTP, real films
//! of three kinds, and a player that nobody here wrote.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use crate::common::{LIMIT, Process, World, dead_port, length, wait_for};
use crate::download::{proxy, requests};
use serde_json::Value;

/// Python's HTTP server, which sends so much of a film, and goes on when it may.
const SERVER: &str = r#"
import functools, http.server, os, sys, time

class Handler(http.server.SimpleHTTPRequestHandler):
    def copyfile(self, source, out):
        out.write(source.read(int(sys.argv[4])))
        while not os.path.exists(sys.argv[3]):
            time.sleep(0.02)
        super().copyfile(source, out)

handler = functools.partial(Handler, directory=sys.argv[2])
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), handler).serve_forever()
"#;

const SECONDS: &str = "20";
const EACH_SECOND: usize = 10;
/// Pictures between two that stand alone.
const GROUP: usize = 20;

/// How a film is made, and written to a file.
struct Kind {
    name: &'static str,
    words: &'static [&'static str],
}

const WEBM: Kind = Kind {
    name: "film.webm",
    words: &["-c:v", "libvpx", "-deadline", "realtime", "-cpu-used", "8", "-c:a", "libopus", "-f", "webm"],
};
const TRANSPORT: Kind =
    Kind { name: "film.ts", words: &["-c:v", "mpeg2video", "-c:a", "mp2", "-f", "mpegts"] };
const MP4: Kind = Kind {
    name: "film.mp4",
    words: &[
        "-c:v",
        "mpeg4",
        "-c:a",
        "aac",
        "-movflags",
        "frag_keyframe+empty_moov+default_base_moof",
        "-f",
        "mp4",
    ],
};

/// Whether there is a player. Not by `whimbrel_lab::skip`, which fails under CI: ffmpeg brings some eighty
/// packages, and is not installed there.
fn has_player() -> bool {
    let has_all =
        ["ffmpeg", "ffprobe"].iter().all(|name| Command::new(name).arg("-version").output().is_ok());
    if !has_all {
        let why = "skipped a test with a player: there is no ffmpeg (scripts/setup.sh browsers installs it)";
        let _ = writeln!(std::io::stderr(), "{why}");
    }
    has_all
}

/// What a tool says, which must succeed.
#[track_caller]
fn said(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn make(kind: &Kind, film: &Path) {
    let pictures = format!("testsrc=size=160x120:rate={EACH_SECOND}");
    let mut ffmpeg = Command::new("ffmpeg");
    ffmpeg.args(["-v", "error", "-nostdin", "-f", "lavfi", "-i", &pictures]);
    ffmpeg.args(["-f", "lavfi", "-i", "sine=440", "-t", SECONDS, "-g", &GROUP.to_string()]);
    said(ffmpeg.args(kind.words).arg(film));
}

/// The pictures that a player showed, each with its time, which is a number of pictures, and a sum of it.
fn shown(lines: &str) -> Vec<(i64, String)> {
    let lines = lines.lines().filter(|line| !line.starts_with('#'));
    let fields = lines.map(|line| line.split(',').map(str::trim).collect::<Vec<_>>());
    fields.map(|fields| (fields[2].parse().unwrap(), fields[fields.len() - 1].to_owned())).collect()
}

/// The last picture that begins before this offset of a film, as its time.
fn last_before(film: &Path, offset: u64) -> i64 {
    let mut ffprobe = Command::new("ffprobe");
    ffprobe.args(["-v", "error", "-select_streams", "v", "-show_entries", "packet=pts_time,pos"]);
    let text = said(ffprobe.args(["-of", "csv=p=0"]).arg(film));
    let packets = text.lines().filter_map(|line| {
        let mut fields = line.split(',');
        let (time, at): (f64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        (at < offset).then_some((time * EACH_SECOND as f64).round() as i64)
    });
    packets.max().unwrap()
}

/// A film goes on at the desk when half of it has come to the phone.
fn goes_on(kind: &Kind) {
    if !has_player() {
        return;
    }
    let world = World::new();
    fs::create_dir(world.path("site")).unwrap();
    let film = world.path("site").join(kind.name);
    make(kind, &film);
    let half = length(&film) / 2;
    let (at, go, first) = (dead_port(), world.path("go"), world.path("first"));
    let mut python = Command::new("python3");
    python.args(["-u", "-c", SERVER, &at.port().to_string()]);
    let server = Process::start(python.arg(world.path("site")).arg(&go).arg(half.to_string()));
    wait_for("the server listens", || TcpStream::connect(at).ok());
    let [phone, desk] = ["phone", "desk"].map(|device| world.id(device));
    let serve = ["gateway", "serve", "--ticket", "--json", "--to", "127.0.0.1"];
    let mut gateway = world.start("gate", &[&serve[..], &["--allow", &phone, "--allow", &desk]].concat());
    let ticket = gateway.next_json()["ticket"].as_str().unwrap().to_owned();
    let (socks, _proxy) = proxy(&world, "socks", &ticket);
    let mut curl = Command::new("curl");
    curl.args(["-sSN", "--max-time", "300", "--socks5-hostname", &socks, "-o"]).arg(&first);
    let mut curl = Process::start(curl.arg(format!("http://{at}/{}", kind.name)));
    wait_for("half of the film", || (length(&first) == half).then_some(()));
    let listed = world.run("phone", &["sessions", "--json", "--through", &ticket]);
    let listed: Value = serde_json::from_str(&listed.succeeded().stdout).unwrap();
    let id = listed["sessions"][0]["id"].as_str().unwrap();
    world.run("phone", &["handoff", id, "--to", &desk, "--through", &ticket]).succeeded();
    // The flags that each command of a test gets go to the shell, which has no use for them.
    let player = format!(
        "exec ffmpeg -v error -nostdin -copyts -i \"$0\" -map 0:v -f framecrc {}",
        world.path("second").display()
    );
    let take = ["take", id, "--through", &ticket, "--as", "http-time", "--json", "--", "sh", "-c"];
    let mut taking = world.start("desk", &[&take[..], &[player.as_str(), "{url}"]].concat());
    assert!(taking.next_json()["url"].as_str().unwrap().starts_with("http://127.0.0.1:"));
    taking.until_said("the session goes on here", 1);
    fs::write(&go, "").unwrap();
    let taken = taking.finish(LIMIT);
    taken.succeeded();
    assert!(!taken.stderr.contains("Invalid data"), "{}", taken.stderr);
    curl.finish(LIMIT);
    assert_eq!(requests(server), 1);

    let mut whole = Command::new("ffmpeg");
    whole.args(["-v", "error", "-nostdin", "-copyts", "-i"]).arg(&film);
    let whole = shown(&said(whole.args(["-map", "0:v", "-f", "framecrc", "-"])));
    let second = shown(&fs::read_to_string(world.path("second")).unwrap());
    assert_eq!(whole.len(), EACH_SECOND * SECONDS.parse::<usize>().unwrap());
    assert!(!second.is_empty() && whole.ends_with(&second), "these are not the film's last pictures");
    let (from, was) = (second[0].0, last_before(&film, half));
    // Half of it may end in the head of a fragment.
    assert!((was - GROUP as i64..=was + 1).contains(&from), "it was at {was}, and goes on at {from}");
}

#[test]
fn a_film_in_webm_goes_on_in_a_player_at_the_desk_near_where_it_was() {
    goes_on(&WEBM);
}

#[test]
fn a_film_in_a_transport_stream_goes_on_in_a_player_at_the_desk_near_where_it_was() {
    goes_on(&TRANSPORT);
}

#[test]
fn a_film_in_fragments_of_mp4_goes_on_in_a_player_at_the_desk_near_where_it_was() {
    goes_on(&MP4);
}
