//! The HTTP client of the demo: curl, as it is; without it, one of its own.
//!
//! It asks once, in HTTP/1.0: the client of hyper would be 30 KB of the program for that.

use std::io;
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use sha2::{Digest as _, Sha256};
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Take,
};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::sync::watch;

const BUFFER: usize = 256 * 1024;
/// The most bytes before those of the file.
const MOST_OF_HEAD: u64 = 64 * 1024;

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
    Own,
}

impl Kind {
    /// curl if it is installed.
    pub(crate) async fn choose() -> Self {
        let curl =
            Command::new("curl").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().await;
        if curl.is_ok_and(|status| status.success()) { Self::Curl } else { Self::Own }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Curl => "curl",
            Self::Own => "its own client (curl is not installed)",
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
            read_all(&mut output, &mut take).await.context("cannot read from curl")?;
            let status = curl.wait().await.context("lost curl")?;
            if !status.success() {
                let mut problem = String::new();
                if let Some(mut errors) = curl.stderr.take() {
                    errors.read_to_string(&mut problem).await.context("cannot read from curl")?;
                }
                bail!("curl failed ({status}): {}", problem.trim());
            }
        }
        Kind::Own => {
            let (mut body, length) = get(server, name).await?;
            read_all(&mut body, &mut take).await.context("the download broke")?;
            if let Some(length) = length.filter(|length| *length != bytes) {
                bail!("the download broke: {bytes} of {length} bytes came");
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

/// Gives all that comes out of `source` to `take`.
async fn read_all(
    source: &mut (dyn AsyncRead + Send + Unpin),
    take: &mut (dyn FnMut(&[u8]) + Send),
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        match source.read(&mut buffer).await? {
            0 => return Ok(()),
            n => take(&buffer[..n]),
        }
    }
}

/// Asks for `/NAME`; returns the body, and how many bytes the server says that it has.
async fn get(server: SocketAddr, name: &str) -> Result<(Take<BufReader<TcpStream>>, Option<u64>)> {
    let mut socket = TcpStream::connect(server).await.context("cannot reach the forwarded port")?;
    let request = format!("GET /{name} HTTP/1.0\r\nHost: {server}\r\n\r\n");
    socket.write_all(request.as_bytes()).await.context("cannot ask the web server")?;
    let mut answer = BufReader::new(socket).take(MOST_OF_HEAD);
    let length = read_head(&mut answer).await?;
    answer.set_limit(length.unwrap_or(u64::MAX));
    Ok((answer, length))
}

/// Reads an answer up to its body; returns the length of that, if it is said.
async fn read_head(answer: &mut (dyn AsyncBufRead + Send + Unpin)) -> Result<Option<u64>> {
    let first = read_line(answer).await?;
    let Some(("HTTP/1.0" | "HTTP/1.1", status)) = first.split_once(' ') else {
        bail!("the web server does not answer in HTTP");
    };
    if !status.starts_with('2') {
        bail!("the web server answers {}", status.escape_debug());
    }
    let mut length = None;
    loop {
        let line = read_line(answer).await?;
        if line.is_empty() {
            return Ok(length);
        }
        if let Some(("content-length", value)) = line.to_ascii_lowercase().split_once(':') {
            length = Some(value.trim().parse::<u64>().context("the web server tells no length")?);
        }
    }
}

async fn read_line(answer: &mut (dyn AsyncBufRead + Send + Unpin)) -> Result<String> {
    let mut line = String::new();
    answer.read_line(&mut line).await.context("the web server breaks off")?;
    let Some(line) = line.strip_suffix('\n') else {
        bail!("the web server breaks off, or begins with more than {MOST_OF_HEAD} bytes");
    };
    Ok(line.strip_suffix('\r').unwrap_or(line).to_owned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use tokio::net::TcpListener;

    use super::super::web::Web;
    use super::*;

    async fn downloaded(server: SocketAddr, name: &str) -> Result<(u64, String)> {
        let (seen, _) = watch::channel(Seen { bytes: 0, at: Instant::now() });
        tokio::time::timeout(Duration::from_secs(60), download(Kind::Own, server, name, seen)).await.unwrap()
    }

    fn sum(content: &[u8]) -> String {
        Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// What becomes of a download that is answered with these bytes.
    async fn answered(answer: String) -> Result<(u64, String)> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = listener.local_addr().unwrap();
        let answering = tokio::spawn(async move {
            let (socket, _) = listener.accept().await.unwrap();
            let (mut asked, mut socket) = (String::new(), BufReader::new(socket));
            while socket.read_line(&mut asked).await.unwrap() > 2 {}
            // One that does not like the answer does not hear all of it.
            socket.write_all(answer.as_bytes()).await.ok();
            asked
        });
        let downloaded = downloaded(server, "file").await;
        assert_eq!(answering.await.unwrap(), format!("GET /file HTTP/1.0\r\nHost: {server}\r\n\r\n"));
        downloaded
    }

    #[tokio::test]
    async fn the_demos_file_arrives_whole_without_curl_and_another_is_not_there() {
        let folder = tempfile::tempdir().unwrap();
        let content: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
        std::fs::write(folder.path().join("file"), &content).unwrap();
        let web = Web::start(folder.path().join("file"), 1 << 30).await.unwrap();
        assert_eq!(downloaded(web.address, "file").await.unwrap(), (300_000, sum(&content)));
        let problem = downloaded(web.address, "other").await.unwrap_err().to_string();
        assert_eq!(problem, "the web server answers 404 Not Found");
    }

    #[tokio::test]
    async fn a_body_ends_where_its_head_says_or_with_the_connection() {
        for (head, expected) in [("Content-Length: 3", "abc"), ("content-length:3", "abc"), ("X: y", "abcd")]
        {
            let answer = format!("HTTP/1.1 200 OK\r\n{head}\r\nServer: x\r\n\r\nabcd");
            let expected = (expected.len() as u64, sum(expected.as_bytes()));
            assert_eq!(answered(answer).await.unwrap(), expected, "{head}");
        }
    }

    #[tokio::test]
    async fn a_broken_download_is_an_error() {
        let long = format!("HTTP/1.0 200 OK\r\n{}\r\n", "X: y\r\n".repeat(20_000));
        for (answer, problem) in [
            ("HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nabcd", "4 of 5 bytes came"),
            ("HTTP/1.0 200 OK\r\nContent-Length: 5\r\n", "breaks off"),
            ("HTTP/1.0 200 OK\r\nContent-Length: -1\r\n\r\n", "tells no length"),
            ("HTTP/1.0 302 Found\r\n\r\n", "answers 302 Found"),
            ("SSH-2.0-x\r\n\r\n", "not answer in HTTP"),
            ("", "breaks off"),
            (long.as_str(), "more than 65536 bytes"),
        ] {
            let error = format!("{:#}", answered(answer.to_owned()).await.unwrap_err());
            assert!(error.contains(problem), "{error}");
        }
    }
}
