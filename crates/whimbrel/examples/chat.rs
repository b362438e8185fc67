//! Two people chat, each wherever they are and go. Without an async runtime, and without any name service.
//!
//! ```sh
//! cargo run --example chat             # prints a ticket
//! cargo run --example chat -- TICKET
//! ```

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::Shutdown;
use std::thread;
use std::time::Duration;

use whimbrel::blocking::{Listener, Stream};
use whimbrel::{Allow, ListenOptions};

fn main() -> io::Result<()> {
    let stream = match std::env::args().nth(1) {
        Some(ticket) => Stream::connect(ticket)?,
        None => {
            let listener = Listener::bind(ListenOptions::unnamed().allow(Allow::Any))?;
            println!("{}", listener.ticket());
            listener.accept()?.0
        }
    };
    println!("-- {} is here; end with ctrl-d", stream.peer_id().short());
    let mut sending = stream.try_clone()?;
    let typing = thread::spawn(move || {
        for line in io::stdin().lines() {
            writeln!(sending, "{}", line?)?;
        }
        sending.shutdown(Shutdown::Write)
    });
    for line in BufReader::new(&stream).lines() {
        println!("> {}", line?);
    }
    println!("-- has left");
    // Tells the other side even if nobody ends the typing here.
    stream.close(Duration::from_secs(5))?;
    match typing.is_finished() {
        true => typing.join().unwrap_or(Ok(())),
        false => Ok(()),
    }
}
