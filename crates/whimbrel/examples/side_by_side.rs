//! The same program twice: over TCP with `std::net`, and over Whimbrel, which goes on when addresses change.
//!
//! ```sh
//! cargo run --example side_by_side
//! ```

use std::io::{self, BufRead as _, BufReader, Read, Write};
use std::thread;

mod over_tcp {
    use std::io;
    use std::net::{TcpListener, TcpStream};

    pub(super) fn run() -> io::Result<String> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        super::answer(move || listener.accept().map(|(stream, _)| stream));
        super::ask(TcpStream::connect(address)?)
    }
}

mod over_whimbrel {
    use std::io;
    use whimbrel::blocking::{Listener, Stream};
    use whimbrel::{Allow, ListenOptions};

    pub(super) fn run() -> io::Result<String> {
        // With a name service: ListenOptions::named("shout.desk.user@example.org")
        let listener = Listener::bind(ListenOptions::unnamed().allow(Allow::Any))?;
        let address = listener.ticket();
        super::answer(move || listener.accept().map(|(stream, _)| stream));
        super::ask(Stream::connect(address)?)
    }
}

/// The server: a line comes in, and goes out louder.
fn answer<S: Read + Write>(accept: impl FnOnce() -> io::Result<S> + Send + 'static) {
    thread::spawn(move || {
        let mut stream = BufReader::new(accept()?);
        let mut line = String::new();
        stream.read_line(&mut line)?;
        stream.get_mut().write_all(line.to_uppercase().as_bytes())
    });
}

/// The client.
fn ask<S: Read + Write>(mut stream: S) -> io::Result<String> {
    stream.write_all(b"hello from here\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn main() -> io::Result<()> {
    print!("std::net: {}", over_tcp::run()?);
    print!("whimbrel: {}", over_whimbrel::run()?);
    Ok(())
}
