//! A stream that is joined to standard input and output, here or, after a hand-over, at another device.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Stdin, Stdout};
use whimbrel_transport::{RecvHalf, SendHalf, Stream};

use crate::moving::{Halves, Way};
use crate::tunnel;
use crate::tunnel::direction::Direction;

/// For whatever reads standard output to take what was written.
const TAKEN_LIMIT: Duration = Duration::from_secs(5);

/// The two directions, which go on wherever they were.
pub(super) struct Joined {
    read: RecvHalf,
    write: SendHalf,
    /// From standard input into the stream.
    out: Direction,
    /// From the stream to standard output.
    back: Direction,
    input: Stdin,
    output: Stdout,
}

impl Joined {
    /// A stream through which nothing has gone yet.
    pub(super) fn new(stream: Stream) -> Self {
        Self::of(stream, Direction::default(), Direction::default())
    }

    /// A stream that was joined at another device.
    pub(super) fn going_on(stream: Stream, out: Way, back: Way) -> Self {
        let direction = |way: Way| Direction::going_on(way.waiting, way.ended);
        Self::of(stream, direction(out), direction(back))
    }

    fn of(stream: Stream, out: Direction, back: Direction) -> Self {
        let (read, write) = stream.into_split();
        Self { read, write, out, back, input: tokio::io::stdin(), output: tokio::io::stdout() }
    }

    /// Carries bytes until both directions have ended. Cancel-safe: the next call goes on where this was.
    pub(super) async fn run(&mut self) -> io::Result<()> {
        let Self { read, write, out, back, input, output } = self;
        let sending = async {
            out.carry(input, write).await?;
            write.stream().drained().await
        };
        let receiving = async {
            back.carry(read, output).await?;
            close_output()
        };
        tokio::pin!(sending, receiving);
        tokio::select! {
            result = &mut sending => match result {
                Ok(()) => receiving.await,
                error => error,
            },
            result = &mut receiving => match result {
                // A person at a terminal does not press Ctrl-D to end a session that is over.
                Ok(()) if io::stdin().is_terminal() => Ok(()),
                Ok(()) => sending.await,
                error => error,
            },
        }
    }

    /// Has the peer see that it broke.
    pub(super) fn break_off(&self) {
        self.write.stream().reset(tunnel::BROKEN);
        self.read.stream().stop(tunnel::BROKEN);
    }

    /// How far both directions are, for another device to go on.
    ///
    /// # Errors
    /// For people: what was written here has to be taken first, since nobody can have it back.
    pub(super) async fn halves(&mut self, peer: &str) -> Result<Halves, String> {
        match tokio::time::timeout(TAKEN_LIMIT, self.output.flush()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(format!("standard output is broken: {error}")),
            Err(_) => return Err("what reads standard output takes nothing".to_owned()),
        }
        let way = |of: &Direction| Way { waiting: of.waiting().to_vec(), ended: of.has_ended() };
        Ok(Halves {
            peer: peer.to_owned(),
            stream: self.write.stream().id(),
            out: way(&self.out),
            back: way(&self.back),
        })
    }

    /// Bytes of standard input that came while the stream went to another device, and go nowhere.
    pub(super) async fn unsent(&mut self) -> usize {
        let mut bytes = vec![0; tunnel::direction::MOST];
        let read = tokio::time::timeout(Duration::ZERO, self.input.read(&mut bytes)).await;
        read.map_or(0, |read| read.unwrap_or_default())
    }
}

/// The reader of our output sees its end now, even while we go on to read the input. Ours is not the only
/// handle that the process has on it, so it is replaced.
fn close_output() -> io::Result<()> {
    let nothing = std::fs::OpenOptions::new().write(true).open("/dev/null")?;
    Ok(rustix::stdio::dup2_stdout(nothing)?)
}
