//! A second implementation of the client side, in Python and written from `docs/protocol.md` alone
//! (`interop/python`), talks to a real listener.
//!
//! It needs `python3` with `venv` (`scripts/setup.sh` installs them); its one package is installed into a
//! virtual environment in the target directory. Without Python the tests say so and check nothing, except in
//! CI, where they fail.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;
use whimbrel_transport::{Allow, CloseCode, Connection, Endpoint, ListenOptions, ManualMonitor};

const PYTHON: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../interop/python");
/// One scenario takes well below a second; this is for a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

fn run(program: impl AsRef<Path>, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program.as_ref()).args(arguments).current_dir(PYTHON).output();
    let output = output.map_err(|error| format!("{}: {error}", program.as_ref().display()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{} {arguments:?}: {}", program.as_ref().display(), said(&output)))
}

fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes)).concat()
}

/// A Python that has what the client needs. Made once; made anew when the requirements change.
fn environment() -> Result<PathBuf, String> {
    let requirements = std::fs::read_to_string(format!("{PYTHON}/requirements.txt")).unwrap();
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("python-client");
    let (python, stamp) = (directory.join("bin/python"), directory.join("requirements.txt"));
    if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == requirements) {
        return Ok(python);
    }
    run("python3", &["-m", "venv", "--clear", &directory.to_string_lossy()])?;
    run(&python, &["-m", "pip", "install", "--quiet", "--only-binary", ":all:", "-r", "requirements.txt"])?;
    std::fs::write(stamp, requirements).map_err(|error| error.to_string())?;
    Ok(python)
}

/// The Python to run, or none if there is none, which CI does not accept.
fn python() -> Option<&'static Path> {
    static PYTHON: OnceLock<Option<PathBuf>> = OnceLock::new();
    let found = PYTHON.get_or_init(|| match environment() {
        Ok(python) => Some(python),
        Err(why) if std::env::var_os("CI").is_some() => panic!("Python is needed; run `make setup`: {why}"),
        Err(why) => {
            eprintln!("SKIPPED: no Python to run the client with: {why}");
            None
        }
    });
    found.as_deref()
}

/// How a connection ended at the listener.
#[derive(Debug, PartialEq, Eq)]
struct Ended {
    code: CloseCode,
    reason: String,
    /// The paths that were there when stream data came.
    paths: BTreeSet<u64>,
}

fn ended(code: CloseCode, reason: &str, paths: impl IntoIterator<Item = u64>) -> Ended {
    Ended { code, reason: reason.to_owned(), paths: paths.into_iter().collect() }
}

/// A listener that echoes every stream of the first connection.
struct Server {
    endpoint: Endpoint,
    ended: oneshot::Receiver<Ended>,
}

impl Server {
    async fn start() -> Self {
        let addresses = [[127, 0, 88, 1], [127, 0, 88, 2]].map(IpAddr::from);
        let endpoint = Endpoint::builder().monitor(ManualMonitor::new(addresses)).bind().await.unwrap();
        let mut listener = endpoint.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
        let (report, ended) = oneshot::channel();
        tokio::spawn(async move {
            let connection = listener.accept().await.expect("a connection");
            let paths = Arc::default();
            serve(&connection, &paths).await;
            let end = connection.closed().await;
            let paths = std::mem::take(&mut *paths.lock().unwrap());
            let _ = report.send(Ended { code: end.code, reason: end.reason, paths });
        });
        Self { endpoint, ended }
    }

    async fn ended(self) -> Ended {
        tokio::time::timeout(LIMIT, self.ended).await.expect("the connection ends").unwrap()
    }
}

/// Echoes; whoever says "end this" gets the connection closed from here.
async fn serve(connection: &Connection, paths: &Arc<Mutex<BTreeSet<u64>>>) {
    while let Ok(mut stream) = connection.accept_stream().await {
        let (connection, paths) = (connection.clone(), paths.clone());
        tokio::spawn(async move {
            let mut piece = vec![0; 16 * 1024];
            while let Ok(n @ 1..) = stream.read(&mut piece).await {
                paths.lock().unwrap().extend(connection.stats().paths.iter().map(|path| path.id));
                let _ = stream.write_all(&piece[..n]).await;
                if &piece[..n] == b"end this" {
                    let _ = connection.close(CloseCode::application(7), "enough", LIMIT).await;
                }
            }
            let _ = stream.shutdown().await;
        });
    }
}

/// Runs one of the client's scenarios to its good end. Returns the server; none if there is no Python.
async fn scenario(name: &str) -> Option<Server> {
    let python = python()?;
    let server = Server::start().await;
    let key: String = server.endpoint.id().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let mut client = tokio::process::Command::new(python);
    client.current_dir(PYTHON).kill_on_drop(true).args(["-B", "run.py", name, &key]);
    client.args(server.endpoint.addr().addrs.iter().map(ToString::to_string));
    let output = tokio::time::timeout(LIMIT, client.output()).await.expect("the client ends").unwrap();
    assert!(output.status.success(), "{name}: {}", said(&output));
    assert_eq!(said(&output).trim(), "ok");
    Some(server)
}

const DONE: CloseCode = CloseCode::application(0);

#[tokio::test(flavor = "multi_thread")]
async fn its_stream_is_echoed_and_both_sides_agree_on_the_end() {
    let Some(server) = scenario("echo").await else { return };
    assert_eq!(server.ended().await, ended(DONE, "done", [0]));
}

#[tokio::test(flavor = "multi_thread")]
async fn it_goes_on_over_a_second_path_when_its_only_one_is_cut() {
    let Some(server) = scenario("move").await else { return };
    assert_eq!(server.ended().await, ended(DONE, "done", [0, 1]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_that_joined_beside_the_first_survives_its_loss() {
    let Some(server) = scenario("two_paths").await else { return };
    assert_eq!(server.ended().await, ended(DONE, "done", [0, 1]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_that_it_retires_ends_without_a_byte_sent_again() {
    let Some(server) = scenario("retire").await else { return };
    assert_eq!(server.ended().await, ended(DONE, "done", [0, 1]));
}

#[tokio::test(flavor = "multi_thread")]
async fn its_equal_opens_on_two_paths_are_both_answered_and_both_stay() {
    let Some(server) = scenario("two_opens").await else { return };
    assert_eq!(server.ended().await, ended(DONE, "done", [0, 1]));
}

#[tokio::test(flavor = "multi_thread")]
async fn its_join_travels_as_early_data_once_for_each_ticket() {
    let Some(server) = scenario("early").await else { return };
    assert_eq!(server.ended().await, ended(DONE, "done", [0, 1, 2]));
}

#[tokio::test(flavor = "multi_thread")]
async fn it_hears_that_the_listener_closes_and_the_listener_knows_it() {
    let Some(server) = scenario("server_closes").await else { return };
    assert_eq!(server.ended().await, ended(CloseCode::application(7), "enough", [0]));
}

#[tokio::test(flavor = "multi_thread")]
async fn its_frames_of_unknown_odd_types_are_acknowledged() {
    let Some(server) = scenario("unknown_frames").await else { return };
    assert_eq!(server.ended().await, ended(DONE, "done", []));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_version_a_used_path_id_and_a_wrong_proof_are_refused_with_their_codes() {
    scenario("refusals").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_does_not_speak_to_a_listener_with_another_key() {
    scenario("another_key").await;
}

/// The client's own tests: the key schedule against RFC 8448, frames against the document's examples.
#[test]
fn its_own_tests_pass() {
    let Some(python) = python() else { return };
    run(python, &["-B", "-m", "unittest", "discover", "-q", "-s", ".", "-t", "."]).unwrap();
}
