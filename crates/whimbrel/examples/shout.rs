//! A service under a name and its client, without an async runtime. Where names are, and whose key this is,
//! stands in the environment.
//!
//! ```sh
//! export WHIMBREL_NAMES=whimbrel:…       # what `whimbrel names serve` prints
//! WHIMBREL_IDENTITY=shout.key cargo run --example shout -- serve shout.desk.ada@example.org
//! cargo run --example shout -- shout.desk.ada@example.org       # on another machine, or in another window
//! ```

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::thread;

use anyhow::{Result, bail};
use whimbrel::blocking::{Endpoint, Listener, Stream};
use whimbrel::{Allow, ListenOptions, Name};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", name] => serve(&name.parse()?),
        [name] => ask(name),
        _ => bail!("give: serve NAME, or: NAME"),
    }
}

fn serve(name: &Name) -> Result<()> {
    // The key of the file has the name, also after a restart. Without a file this is refused.
    Endpoint::process_default()?.register_user(name.user())?;
    let listener = Listener::bind(ListenOptions::named(name).allow(Allow::Any))?;
    println!("{name} is here");
    for stream in listener.incoming() {
        let stream = stream?;
        thread::spawn(move || answer(stream));
    }
    Ok(())
}

/// A line comes in, and goes out louder.
fn answer(stream: Stream) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line)?;
    stream.get_mut().write_all(line.to_uppercase().as_bytes())
}

fn ask(name: &str) -> Result<()> {
    let mut stream = Stream::connect(name)?;
    stream.write_all(b"hello from here\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    print!("{answer}");
    Ok(())
}
