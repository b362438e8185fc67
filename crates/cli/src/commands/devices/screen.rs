//! A page of the terminal with the user's devices and what runs here: keys choose a session and a device, and
//! move one to the other.

mod page;
mod seen;

use std::io::{self, IsTerminal as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use crossterm::event::{Event, KeyEventKind};
use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use tokio::time::MissedTickBehavior;
use whimbrel_proxy::SessionsAt;

use self::page::{Device, Page, Place, Row, Session, Wanted};
use self::seen::{Seen, look};
use crate::commands::handoff::{give_word, push};
use crate::commands::sessions::{At, with_network};
use crate::failure::{self, Failure};
use crate::fullscreen::FullScreen;
use crate::moving::Offered;
use crate::options::Globals;
use crate::output;
use crate::own_group::OwnGroup;
use crate::relaying::apart::RelayFlag;
use crate::shutdown::Shutdown;

/// Between two looks at everything.
const LOOK: Duration = Duration::from_secs(1);
/// A device may take what was moved to it for so long.
const HOLDS: Duration = Duration::from_secs(5 * 60);
/// Lines that are printed at the end.
const MOST_LEFT: usize = 100;

/// What became of a move: for the page, and for the terminal after it.
struct Moved {
    note: String,
    left: Option<String>,
}

/// Shows the page until a key or a signal ends it.
pub(super) async fn run(globals: &Globals, at: &At, relay: &RelayFlag) -> Result<()> {
    if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
        let text = "this needs a terminal; `whimbrel devices list` and `whimbrel sessions` do not";
        return Err(Failure::usage(text));
    }
    // What it said on standard error would be on the page, and the page alone reads the terminal.
    let globals = &Globals { quiet: true, until_eof: false, ..globals.clone() };
    let own = Arc::new(OwnGroup::open(globals)?);
    let hands = |gateway| Hands { globals, relays: relay.texts(), gateway };
    if at.through.is_none() {
        return play(&own, &hands(None)).await;
    }
    with_network(globals, async |network| {
        let gateway = at.reach(network).await?;
        play(&own, &hands(Some(gateway))).await
    })
    .await
}

async fn play(own: &Arc<OwnGroup>, hands: &Hands<'_>) -> Result<()> {
    let mut shutdown = Shutdown::catch(false)?.with_hangup()?;
    let mut left = Left::default();
    let mut screen = FullScreen::open()?;
    let mut page = Page::default();
    let colours = std::env::var_os("NO_COLOR").is_none_or(|text| text.is_empty());
    let mut ticks = tokio::time::interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut looking: Option<LocalBoxFuture<'_, Seen>> = None;
    let mut moving: Option<LocalBoxFuture<'_, Moved>> = None;
    loop {
        let (width, height) = screen.size();
        screen.put(&drawn(&page.rows(width, height), colours))?;
        tokio::select! {
            event = screen.event() => match event.map(|event| wanted(&mut page, &event)) {
                // The terminal is gone.
                None => return Err(Failure::silent(129)),
                Some(None) => {}
                Some(Some(Wanted::End)) => return Ok(()),
                Some(Some(Wanted::Interrupt)) => return Err(Failure::silent(130)),
                Some(Some(Wanted::Move(session, to))) => {
                    left.begins(&session, &to);
                    moving = Some(hands.hand_over(*session, to).boxed_local());
                }
            },
            _ = ticks.tick(), if looking.is_none() => {
                looking = Some(look(own.clone(), hands.gateway.as_ref()).boxed_local());
            }
            seen = done(&mut looking) => {
                looking = None;
                page.take(seen.devices, seen.sessions, Instant::now());
                page.problem = seen.problem;
            }
            moved = done(&mut moving) => {
                moving = None;
                page.moved(moved.note);
                left.ends(moved.left);
            }
            request = shutdown.requested() => return Err(request.error()),
        }
    }
}

/// Waits for something, if there is anything to wait for. Cancel-safe.
async fn done<T>(work: &mut Option<LocalBoxFuture<'_, T>>) -> T {
    match work {
        Some(work) => work.await,
        None => std::future::pending().await,
    }
}

/// What an event asks for. A change of size has the page drawn anew, as all do.
fn wanted(page: &mut Page, event: &Event) -> Option<Wanted> {
    match event {
        Event::Key(key) if key.kind != KeyEventKind::Release => page.key(*key),
        _ => None,
    }
}

/// Writes over what is there, so that nothing flickers.
fn drawn(rows: &[Row], colours: bool) -> String {
    let rows: Vec<String> = rows.iter().map(|row| row.drawn(colours)).collect();
    format!("\x1b[?25l\x1b[H{}\x1b[J", rows.join("\r\n"))
}

/// What is printed once the terminal is given back: made before the page, it is dropped after it.
#[derive(Default)]
struct Left {
    lines: Vec<String>,
    /// Of the move that goes on: nobody sees its end if the page ends before it.
    under_way: Option<String>,
}

impl Left {
    fn begins(&mut self, session: &Session, to: &Device) {
        let (short, called) = (session.short(), &to.called);
        self.under_way = Some(format!(
            "{short} was on its way to {called}; `whimbrel sessions` shows whether it is here still"
        ));
    }

    fn ends(&mut self, left: Option<String>) {
        self.under_way = None;
        self.lines.extend(left);
        self.lines.truncate(MOST_LEFT);
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        // If nobody reads it there is nobody to tell.
        let _ = self.lines.iter().chain(&self.under_way).try_for_each(output::line);
    }
}

/// What moves sessions.
struct Hands<'g> {
    globals: &'g Globals,
    relays: Vec<String>,
    gateway: Option<SessionsAt>,
}

impl Hands<'_> {
    async fn hand_over(&self, session: Session, to: Device) -> Moved {
        match self.try_to(&session, &to).await {
            Ok(moved) => moved,
            Err(error) => {
                let note = format!("{} stays: {}", session.short(), failure::line(&error));
                Moved { note, left: None }
            }
        }
    }

    async fn try_to(&self, session: &Session, to: &Device) -> Result<Moved> {
        let (short, called) = (session.short(), to.called.as_str());
        match session.place {
            Place::Gateway { id, moves } => {
                let gateway = self.gateway.as_ref().context("there is no gateway")?;
                gateway.hand_off((id, moves), to.id, HOLDS).await?;
                let note = format!("{called} may take {short}; its agent does, or: whimbrel take {short}");
                Ok(Moved { note, left: None })
            }
            Place::Here => {
                let given = give_word(&session.id, (to.id, called), HOLDS, self.relays.clone()).await?;
                let note = match push(self.globals, to.id, &given).await {
                    Offered::Taken => {
                        return Ok(Moved { note: format!("{short} went on at {called}"), left: None });
                    }
                    Offered::Left(why) => format!("{called} has left it here: {why}"),
                    Offered::Nobody(_) => {
                        format!("no agent of {called} takes it; the end of this page says what does")
                    }
                };
                let mut left = format!("{called} may take {short}: {}", given.command_there());
                if let Some(why) = &given.ticketed.unrelayed {
                    left += &format!("\n{why}; from another network this may be out of reach");
                }
                Ok(Moved { note, left: Some(left) })
            }
        }
    }
}
