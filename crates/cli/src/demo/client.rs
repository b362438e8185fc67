//! The HTTP client of the demo: curl, as it is; without it, hyper.

use futures_util::FutureExt;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use http_body_util::{BodyExt as _, Empty};
use hyper::Request;
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::sync::watch;

const BUFFER: usize = 256 * 1024;

/// How far the client has come, and when it got the last byte.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) bytes: u64,
    pub(crate) at: Instant,
}

/// Which client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Curl,
    Hyper,
}

impl Kind {
    /// curl if it is installed.
    pub(crate) async fn choose() -> Self {
        let curl =
            Command::new("curl").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().await;
        if curl.is_ok_and(|status| status.success()) { Self::Curl } else { Self::Hyper }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Curl => "curl",
            Self::Hyper => "hyper (curl is not installed)",
        }
    }
}

/// Downloads `/NAME` from `server`; tells what was seen, and returns the sum of all bytes.
pub(crate) async fn download(
    kind: Kind,
    server: SocketAddr,
    name: &str,
    seen: watch::Sender<Seen>,
) -> Result<(u64, String)> {
    let mut hasher = Sha256::new();
    let mut bytes = 0;
    let mut take = |chunk: &[u8]| {
        hasher.update(chunk);
        bytes += chunk.len() as u64;
        seen.send_replace(Seen { bytes, at: Instant::now() });
    };
    match kind {
        Kind::Curl => {
            let mut curl = start_curl(server, name)?;
            let mut output = curl.stdout.take().context("curl has no output")?;
            let mut buffer = vec![0; BUFFER];
            loop {
                match output.read(&mut buffer).await.context("cannot read from curl")? {
                    0 => break,
                    n => take(&buffer[..n]),
                }
            }
            let status = curl.wait().await.context("lost curl")?;
            if !status.success() {
                let mut problem = String::new();
                if let Some(mut errors) = curl.stderr.take() {
                    errors.read_to_string(&mut problem).await.context("cannot read from curl")?;
                }
                bail!("curl failed ({status}): {}", problem.trim());
            }
        }
        Kind::Hyper => {
            let mut body = get(server, name).await?;
            while let Some(frame) = body.frame().await {
                if let Some(chunk) = frame.context("the download broke")?.data_ref() {
                    take(chunk);
                }
            }
        }
    }
    Ok((bytes, hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()))
}

fn start_curl(server: SocketAddr, name: &str) -> Result<Child> {
    Command::new("curl")
        .args(["--silent", "--show-error", "--fail", "--no-buffer", "--noproxy", "*", "--output", "-"])
        .arg(format!("http://{server}/{name}"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Ctrl-C is for us; we end what we started.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .context("cannot start curl")
}

async fn get(server: SocketAddr, name: &str) -> Result<Incoming> {
    let socket = TcpStream::connect(server).await.context("cannot reach the forwarded port")?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket)).await?;
    tokio::spawn(FutureExt::boxed(connection));
    let request = Request::get(format!("/{name}")).header("host", server.to_string());
    let response = sender.send_request(request.body(Empty::<Bytes>::new())?).await?;
    if !response.status().is_success() {
        bail!("the web server answers {}", response.status());
    }
    Ok(response.into_body())
}
