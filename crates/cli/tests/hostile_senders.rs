//! Senders that speak the protocol of transfers by hand, to a real `whimbrel receive`, and mean no good.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use crate::common::{self, Process, World, length};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use whimbrel::transport::{Connection, ManualMonitor, Stream};
use whimbrel_base::Ticket;

const LIMIT: Duration = Duration::from_secs(20);
const CHUNK: usize = 256 * 1024;

/// A receiver that takes everything from anybody, and a connection to it.
struct Stage {
    world: World,
    receive: Process,
    connection: Connection,
    _endpoint: whimbrel::Endpoint,
}

impl Stage {
    async fn new(args: &[&str]) -> Self {
        let world = World::new();
        let inbox = world.path("inbox");
        fs::create_dir(&inbox).unwrap();
        world.id("bob");
        let dir = inbox.to_str().unwrap();
        let all = [&["receive", "--allow", "any", "--yes", "--dir", dir, "--json"], args].concat();
        let mut receive = world.start("bob", &all);
        let ticket: Ticket = receive.next_json()["ticket"].as_str().unwrap().parse().unwrap();
        let monitor = ManualMonitor::new(["127.0.0.1".parse().unwrap()]);
        let endpoint = whimbrel::Endpoint::builder().monitor(monitor).bind().await.unwrap();
        let connection: Connection = endpoint.connect(ticket).await.unwrap();
        Self { world, receive, connection, _endpoint: endpoint }
    }

    async fn open(&self) -> Talk {
        Talk(self.connection.open_stream().await.unwrap())
    }

    /// Offers something, and returns the reason for which it is refused.
    async fn refused(&self, offer: Value) -> String {
        let mut talk = self.open().await;
        talk.say(&offer).await;
        talk.refusal().await
    }

    /// Everything that is in the world, with how long it is, but for users' own files.
    fn inbox(&self) -> BTreeSet<String> {
        let read = fs::read_dir(self.world.path("inbox")).unwrap();
        read.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Ends the receiver; returns what it said to its user.
    fn end(self) -> String {
        self.receive.signal(rustix::process::Signal::TERM);
        let output = self.receive.output(common::LIMIT);
        assert!(!output.stderr.contains("panicked"), "{}", output.stderr);
        output.stderr
    }
}

struct Talk(Stream);

impl Talk {
    async fn say(&mut self, message: &Value) {
        let body = message.to_string();
        let all = [&(body.len() as u32).to_be_bytes()[..], body.as_bytes()].concat();
        self.0.write_all(&all).await.unwrap();
    }

    async fn hear(&mut self) -> Value {
        let read = async {
            let mut body = vec![0; self.0.read_u32().await.unwrap() as usize];
            self.0.read_exact(&mut body).await.unwrap();
            serde_json::from_slice(&body).unwrap()
        };
        tokio::time::timeout(LIMIT, read).await.expect("no answer")
    }

    async fn refusal(&mut self) -> String {
        let heard = self.hear().await;
        assert_eq!(heard["type"], "refuse", "{heard}");
        let reason = heard["reason"].as_str().unwrap().to_owned();
        assert!(!reason.contains('\n'), "{reason}");
        reason
    }

    /// Offers a file and begins it, in chunks or not.
    async fn begin(&mut self, offer: &Value, chunks: bool) {
        self.say(offer).await;
        let want = self.hear().await;
        assert_eq!(want["type"], "want", "{want}");
        self.say(&json!({ "type": "start", "offset": 0, "chunks": chunks })).await;
    }

    async fn bytes(&mut self, bytes: &[u8]) {
        // The receiver may have stopped to read.
        let _ = self.0.write_all(bytes).await;
    }
}

fn file(name: &str, size: u64) -> Value {
    json!({ "type": "offer", "version": 1, "name": name, "size": size })
}

fn batch(id: u64, entries: u64, size: u64, names: &[&str]) -> Value {
    json!({
        "type": "offer", "version": 2, "name": "files", "size": size,
        "batch": { "id": id, "entries": entries, "names": names.len(), "shown": names },
    })
}

fn part(id: u64, above: &[&str], name: &str, size: u64) -> Value {
    json!({ "type": "offer", "version": 2, "name": name, "size": size, "above": above, "part_of": id })
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_lead_elsewhere_or_mean_something_are_refused() {
    let stage = Stage::new(&["--overwrite"]).await;
    let names = [
        "../x",
        "/tmp/x",
        "a/b",
        "..",
        ".",
        "",
        ".bashrc",
        "-rf",
        "~",
        "~root",
        "a\n",
        "a\u{1b}[2J",
        "a\0b",
        "CON",
        "nul.txt",
        "a.",
        "a ",
        "gpj\u{202e}.exe",
        "a\\b",
    ];
    for name in names {
        let reason = stage.refused(file(name, 1)).await;
        assert!(reason.contains("is refused"), "{name:?}: {reason}");
    }
    let long = "x".repeat(300);
    assert!(stage.refused(file(&long, 1)).await.contains("too long"));
    assert_eq!(stage.inbox(), BTreeSet::new());
    assert!(!stage.world.path("x").exists());
    // The sender hears it first.
    stage.receive.until_said("is refused", names.len() + 1);
    let told = stage.end();
    assert_eq!(told.matches("is refused").count(), names.len() + 1, "{told}");
    assert!(!told.contains('\u{1b}') && !told.contains('\u{202e}'), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn directories_that_lead_elsewhere_are_refused() {
    let stage = Stage::new(&["--overwrite"]).await;
    let mut first = stage.open().await;
    first.say(&batch(7, 50, 1000, &["top"])).await;
    assert_eq!(first.hear().await["type"], "accept");
    for above in
        [&["..", ".."][..], &["top", ".."], &["top", "a/b"], &["top", ".ssh"], &["top", "/etc"], &["."]]
    {
        let reason = stage.refused(part(7, above, "x", 1)).await;
        assert!(reason.contains("is refused"), "{above:?}: {reason}");
    }
    assert!(stage.refused(part(7, &["other"], "x", 1)).await.contains("not announced"));
    assert!(stage.refused(part(8, &["top"], "x", 1)).await.contains("no such batch"));
    // Directories without a batch that somebody agreed to.
    let lone = json!({ "type": "offer", "version": 2, "name": "x", "size": 1, "above": ["top"] });
    assert!(stage.refused(lone).await.contains("without a batch"));
    let deep = json!({ "type": "offer", "version": 2, "name": "x", "size": 1, "above": vec!["d"; 5000], "part_of": 7 });
    let mut talk = stage.open().await;
    talk.say(&deep).await;
    assert!(talk.0.read_u32().await.is_err(), "it was answered");
    // A link that waits in the inbox is not gone through.
    let elsewhere = stage.world.path("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    symlink(&elsewhere, stage.world.path("inbox/.top.whimbrel-part")).unwrap();
    assert!(stage.refused(part(7, &["top"], "x", 1)).await.contains("no directory"));
    fs::remove_file(stage.world.path("inbox/.top.whimbrel-part")).unwrap();
    symlink(&elsewhere, stage.world.path("inbox/top")).unwrap();
    assert!(stage.refused(part(7, &["top"], "x", 1)).await.contains("exists"));
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
    stage.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn links_in_the_inbox_are_not_written_through() {
    let stage = Stage::new(&["--overwrite"]).await;
    let victim = stage.world.path("victim");
    fs::write(&victim, "mine").unwrap();
    symlink(&victim, stage.world.path("inbox/.f.whimbrel-part")).unwrap();
    assert!(stage.refused(file("f", 3)).await.contains("cannot write"));
    symlink(&victim, stage.world.path("inbox/g")).unwrap();
    let mut talk = stage.open().await;
    talk.begin(&file("g", 0), false).await;
    let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    talk.say(&json!({ "type": "end", "sha256": empty })).await;
    assert_eq!(talk.hear().await["type"], "done");
    assert!(stage.world.path("inbox/g").symlink_metadata().unwrap().is_file());
    assert_eq!(fs::read(&victim).unwrap(), b"mine");
    stage.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn sizes_and_numbers_beyond_the_limits_are_refused() {
    let stage = Stage::new(&["--max-size", "1M", "--max-total", "4M"]).await;
    assert!(stage.refused(file("f", u64::MAX)).await.contains("--max-size"));
    assert!(stage.refused(batch(1, 1_000_000, 10, &["d"])).await.contains("too many"));
    assert!(stage.refused(batch(1, 10, u64::MAX, &["d"])).await.contains("--max-total"));
    assert!(stage.refused(batch(1, 10, 10, &["../d"])).await.contains("is refused"));
    let mut newer = file("f", 1);
    newer["version"] = json!(9);
    assert!(stage.refused(newer).await.contains("update"));
    // More files and more bytes than the batch was said to have.
    let mut first = stage.open().await;
    first.say(&batch(2, 3, 10, &["d"])).await;
    assert_eq!(first.hear().await["type"], "accept");
    assert!(stage.refused(part(2, &["d"], "large", 11)).await.contains("more than it announced"));
    let mut open = Vec::new();
    for n in 0..3 {
        let mut talk = stage.open().await;
        talk.say(&part(2, &["d"], &format!("f{n}"), 1)).await;
        assert_eq!(talk.hear().await["type"], "want");
        open.push(talk);
    }
    assert!(stage.refused(part(2, &["d"], "f3", 1)).await.contains("more than it announced"));
    // What did not arrive does not become a directory.
    first.say(&json!({ "type": "batch_end", "complete": true })).await;
    assert!(first.refusal().await.contains("did not arrive"));
    assert!(!stage.world.path("inbox/d").exists());
    stage.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn more_than_was_offered_is_refused() {
    let stage = Stage::new(&["--max-size", "1M"]).await;
    let mut plain = stage.open().await;
    plain.begin(&file("plain", 10), false).await;
    plain.bytes(&[7; 4000]).await;
    assert!(plain.refusal().await.contains("something else"));
    let mut chunks = stage.open().await;
    chunks.begin(&file("chunks", 10), true).await;
    chunks.bytes(&[&11u32.to_be_bytes()[..], &[7; 11]].concat()).await;
    assert!(chunks.refusal().await.contains("more than the 10 bytes"));
    // A file whose size nobody told ends at the limit.
    let mut endless = stage.open().await;
    let offer = json!({ "type": "offer", "version": 2, "name": "endless", "size": 0, "open_ended": true });
    endless.begin(&offer, true).await;
    let chunk = [&(CHUNK as u32).to_be_bytes()[..], &vec![7; CHUNK]].concat();
    for _ in 0..5 {
        endless.bytes(&chunk).await;
    }
    assert!(endless.refusal().await.contains("--max-size"));
    for name in ["plain", "chunks", "endless"] {
        assert!(!stage.world.path("inbox").join(name).exists());
    }
    stage.end();
}

/// 256 MiB of zeros in one chunk, and 1 GiB in many.
#[tokio::test(flavor = "multi_thread")]
async fn a_decompression_bomb_is_cut_off() {
    let stage = Stage::new(&["--max-size", "2M"]).await;
    let send = |bomb: &[u8]| [&(bomb.len() as u32 | 1 << 31).to_be_bytes()[..], bomb].concat();
    let zeros = vec![0; 256 << 20];
    let one = send(&zstd::bulk::compress(&zeros, 3).unwrap());
    let mut talk = stage.open().await;
    talk.begin(&file("one", 1000), true).await;
    talk.bytes(&one).await;
    assert!(talk.refusal().await.contains("more than it may"));
    let small = send(&zstd::bulk::compress(&zeros[..CHUNK], 3).unwrap());
    let offer = json!({ "type": "offer", "version": 2, "name": "many", "size": 0, "open_ended": true });
    for (name, offer) in [("many", offer), ("known", file("known", 1000))] {
        let mut talk = stage.open().await;
        talk.begin(&offer, true).await;
        talk.bytes(&small.repeat(4096)).await;
        let reason = talk.refusal().await;
        assert!(reason.contains("--max-size") || reason.contains("more than the 1000"), "{reason}");
        let part = stage.world.path("inbox").join(format!(".{name}.whimbrel-part"));
        assert!(length(&part) <= 2 << 20, "{} bytes of {name}", length(&part));
    }
    assert_eq!(stage.inbox().iter().filter(|name| !name.starts_with('.')).count(), 0);
    stage.end();
}
