//! Where `forward` listens: a TCP port, or a Unix socket that only some users may open.

use std::fmt;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context as _, Result, bail};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

const UNIX: &str = "unix:";

/// A place to listen at: `ADDR:PORT`, or `unix:PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix(UNIX) {
            Some("") => Err("write a Unix socket as unix:PATH".to_owned()),
            Some(path) => Ok(Self::Unix(path.into())),
            None => text
                .parse()
                .map(Self::Tcp)
                .map_err(|_| "write it as ADDR:PORT, as in 127.0.0.1:8080, or as unix:PATH".to_owned()),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

/// A socket's permissions in octal, as in 0660.
pub(crate) fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "write it in octal, as in 0660".to_owned())
}

/// A listening socket. A Unix socket's file is removed with it.
pub(crate) enum LocalListener {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

/// The file of a Unix socket that listens. It is removed with this, unless it is left to another process.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    is_left: bool,
}

/// A local program's end.
pub(crate) enum LocalSocket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl LocalListener {
    /// Listens at `place`; a Unix socket gets the permissions `mode`.
    pub(crate) async fn bind(place: &Place, mode: u32) -> Result<Self> {
        match place {
            Place::Tcp(address) => {
                let listener = TcpListener::bind(address).await.with_context(|| {
                    format!("cannot listen on {address}; choose another port, or stop who uses it")
                })?;
                Ok(Self::Tcp(listener))
            }
            Place::Unix(path) => {
                let listener =
                    bind_unix(path, mode).with_context(|| format!("cannot listen on {}", path.display()))?;
                Ok(Self::Unix(listener, SocketFile { path: path.clone(), is_left: false }))
            }
        }
    }

    /// Where it listens in fact.
    pub(crate) fn place(&self) -> io::Result<Place> {
        match self {
            Self::Tcp(listener) => Ok(Place::Tcp(listener.local_addr()?)),
            Self::Unix(_, file) => Ok(Place::Unix(file.path.clone())),
        }
    }

    /// The next local connection. Cancel-safe.
    pub(crate) async fn accept(&self) -> io::Result<LocalSocket> {
        match self {
            Self::Tcp(listener) => Ok(LocalSocket::Tcp(listener.accept().await?.0)),
            Self::Unix(listener, _) => Ok(LocalSocket::Unix(listener.accept().await?.0)),
        }
    }
}

impl LocalListener {
    /// One that another process handed over, at `place`. A Unix socket's file stays that process's until this
    /// one [owns](Self::own) it.
    ///
    /// # Errors
    /// When the system does not take it.
    pub(crate) fn handed_over(socket: OwnedFd, place: Place) -> io::Result<Self> {
        match place {
            Place::Tcp(_) => {
                let socket = std::net::TcpListener::from(socket);
                socket.set_nonblocking(true)?;
                TcpListener::from_std(socket).map(Self::Tcp)
            }
            Place::Unix(path) => {
                let socket = std::os::unix::net::UnixListener::from(socket);
                socket.set_nonblocking(true)?;
                Ok(Self::Unix(UnixListener::from_std(socket)?, SocketFile { path, is_left: true }))
            }
        }
    }

    /// Another process goes on with it.
    pub(crate) fn leave(mut self) {
        self.set_left(true);
    }

    /// This process has it, and nobody else any more.
    pub(crate) fn own(&mut self) {
        self.set_left(false);
    }

    fn set_left(&mut self, is_left: bool) {
        if let Self::Unix(_, file) = self {
            file.is_left = is_left;
        }
    }
}

impl AsFd for LocalListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener, _) => listener.as_fd(),
        }
    }
}

impl LocalSocket {
    /// One that another process handed over: a Unix socket if `is_unix`.
    ///
    /// # Errors
    /// When the system does not take it.
    pub(crate) fn handed_over(socket: OwnedFd, is_unix: bool) -> io::Result<Self> {
        if is_unix {
            let socket = std::os::unix::net::UnixStream::from(socket);
            socket.set_nonblocking(true)?;
            return UnixStream::from_std(socket).map(Self::Unix);
        }
        let socket = std::net::TcpStream::from(socket);
        socket.set_nonblocking(true)?;
        TcpStream::from_std(socket).map(Self::Tcp)
    }

    pub(crate) fn is_unix(&self) -> bool {
        matches!(self, Self::Unix(_))
    }
}

impl AsFd for LocalSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(socket) => socket.as_fd(),
            Self::Unix(socket) => socket.as_fd(),
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if !self.is_left {
            // It may be gone already, or in another hand; then it is not ours to remove.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Makes the socket in a directory that nobody else can enter, and gives it its name when its permissions are
/// right: there is no moment in which others can connect.
fn bind_unix(path: &Path, mode: u32) -> Result<UnixListener> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => {
            bail!("it exists and is no socket; move it away")
        }
        Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => {
            bail!("another program listens there")
        }
        // What a program left behind that was killed.
        Ok(_) => fs::remove_file(path)?,
        Err(_) => {}
    }
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let private = tempfile::Builder::new().prefix(".whimbrel-").tempdir_in(directory)?;
    let inside = private.path().join("s");
    let listener = UnixListener::bind(&inside)?;
    fs::set_permissions(&inside, fs::Permissions::from_mode(mode))?;
    fs::rename(&inside, path)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn places_and_modes() {
        assert_eq!("127.0.0.1:80".parse(), Ok(Place::Tcp("127.0.0.1:80".parse().unwrap())));
        assert_eq!("unix:/run/x".parse(), Ok(Place::Unix("/run/x".into())));
        for bad in ["", "80", "unix:", "localhost:80"] {
            assert!(bad.parse::<Place>().is_err(), "{bad}");
        }
        assert_eq!(mode("0660"), Ok(0o660));
        assert!(mode("999").is_err() && mode("1777").is_err());
    }

    #[tokio::test]
    async fn a_unix_socket_has_its_mode_and_takes_the_place_of_a_dead_one_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let listener = LocalListener::bind(&Place::Unix(path.clone()), 0o600).await.unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let error = LocalListener::bind(&Place::Unix(path.clone()), 0o600).await.err().unwrap();
        assert!(format!("{error:#}").contains("another program"), "{error:#}");
        drop(listener);
        assert!(!path.exists());
        fs::write(&path, "mine").unwrap();
        assert!(LocalListener::bind(&Place::Unix(path.clone()), 0o600).await.is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
