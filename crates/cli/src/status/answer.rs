//! A command's side of its socket.

use futures_util::FutureExt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::task::JoinSet;
use whimbrel_transport::ManualMonitor;

use super::event::Teller;
use super::report::Report;
use super::subject::Subject;
use super::{LIMIT, MAX_REQUEST};
use crate::estate::{Asker, Question};
use crate::limits::{Rule, Who};
use crate::moving::Word;
use crate::multipath::Change;

/// Clients that are answered at the same time, those that follow events included.
const MAX_CLIENTS: usize = 32;
/// Clients that may follow events at the same time.
const MAX_FOLLOWERS: usize = 16;
/// So often those that follow are told of an outage while it lasts.
const OUTAGE_NEWS: Duration = Duration::from_secs(1);
/// Time between statistics.
const INTERVALS: std::ops::RangeInclusive<u64> = 100..=3_600_000;

/// Answers for one command.
pub(super) struct Answerer {
    pub(super) subject: Subject,
    pub(super) manual: Option<ManualMonitor>,
    /// Hears of those who want to take over; `None` for a command that cannot hand over.
    pub(super) successors: Option<mpsc::Sender<Asker>>,
}

/// What is asked for; nothing: the state.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Request {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) addresses: Option<Vec<IpAddr>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) change: Option<Change>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) limit: Option<Rule>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) lift: Option<Who>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) events: Option<Follow>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) take_over: Option<Question>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) hand_over: Option<Word>,
}

/// A client wants to hear what happens.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(super) struct Follow {
    /// Between statistics.
    #[serde(default = "ten_seconds")]
    pub(super) interval_ms: u64,
}

fn ten_seconds() -> u64 {
    10_000
}

/// What a command says to a request.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum Answer {
    Report(Box<Report>),
    Refusal { error: String },
}

impl Answer {
    /// Reads it. By way of a value, as the monitor does: what reads a report comes once for each form that
    /// one is read from, 25 KB of the program.
    pub(super) fn read(bytes: &[u8]) -> serde_json::Result<Self> {
        let value: Value = serde_json::from_slice(bytes)?;
        match value.get("error").and_then(Value::as_str) {
            Some(error) => Ok(Self::Refusal { error: error.to_owned() }),
            None => serde_json::from_value(value).map(Self::Report),
        }
    }
}

impl Answerer {
    async fn answer(&self, socket: UnixStream, followers: &Semaphore) -> io::Result<()> {
        let mut socket = BufReader::new(socket);
        let mut line = String::new();
        let mut bounded = (&mut socket).take(MAX_REQUEST);
        let read = bounded.read_line(&mut line);
        tokio::time::timeout(LIMIT, read).await??;
        let request = match line.trim() {
            "" => Ok(Request::default()),
            line => serde_json::from_slice(line.as_bytes()).map_err(|error| format!("no request: {error}")),
        };
        if let Ok(Request { take_over: Some(question), .. }) = &request {
            return self.hand_over(socket.into_inner(), question).await;
        }
        if let Ok(Request { hand_over: Some(word), .. }) = &request {
            let Subject { endpoint, key, about, .. } = &self.subject;
            return match about.sessions.give_word((endpoint, key), word).await {
                Ok(ticketed) => say(socket.get_mut(), &ticketed).await,
                Err(error) => say(socket.get_mut(), &Answer::Refusal { error }).await,
            };
        }
        match request.and_then(|request| self.obey(&request).map(|()| request)) {
            Err(error) => say(socket.get_mut(), &Answer::Refusal { error }).await,
            Ok(Request { events: Some(follow), .. }) => match followers.try_acquire() {
                Ok(_place) => self.tell(socket.get_mut(), follow).await,
                Err(_) => {
                    let error = format!("{MAX_FOLLOWERS} programs follow this command already");
                    say(socket.get_mut(), &Answer::Refusal { error }).await
                }
            },
            Ok(_) => say(socket.get_mut(), &self.subject.report()).await,
        }
    }

    /// Has the command hand over to who asks on this socket, if it may.
    async fn hand_over(&self, mut socket: UnixStream, question: &Question) -> io::Result<()> {
        let Some(successors) = &self.successors else {
            let error = "this command cannot hand over; stop it, and start it again".to_owned();
            return say(&mut socket, &Answer::Refusal { error }).await;
        };
        match Asker::check(socket, question) {
            Err((mut socket, error)) => say(&mut socket, &Answer::Refusal { error }).await,
            Ok(asker) => {
                if let Err(TrySendError::Full(asker) | TrySendError::Closed(asker)) =
                    successors.try_send(asker)
                {
                    asker.refuse("another instance takes over just now".to_owned()).await;
                }
                Ok(())
            }
        }
    }

    fn obey(&self, request: &Request) -> Result<(), String> {
        if let Some(change) = &request.change {
            change.make(&self.subject.endpoint, self.subject.service)?;
        }
        if let Some(rule) = &request.limit {
            self.subject.limits.set(rule.clone())?;
        }
        if let Some(who) = &request.lift {
            self.subject.limits.lift(who)?;
        }
        if let Some(addresses) = &request.addresses {
            let monitor = self.manual.as_ref().ok_or("the command was not started with --address")?;
            monitor.set(addresses.iter().copied());
        }
        if let Some(follow) = &request.events
            && !INTERVALS.contains(&follow.interval_ms)
        {
            return Err(format!("interval_ms is {} to {}", INTERVALS.start(), INTERVALS.end()));
        }
        Ok(())
    }

    /// Tells a client what happens, a line for each event, until it leaves. One that falls behind is told how
    /// much it missed: what waits for it is bounded by the endpoint's backlog.
    async fn tell(&self, socket: &mut UnixStream, follow: Follow) -> io::Result<()> {
        let mut events = self.subject.endpoint.events();
        let mut teller = Teller::new(&self.subject);
        let mut interval = tokio::time::interval(Duration::from_millis(follow.interval_ms));
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut outages = tokio::time::interval(OUTAGE_NEWS);
        outages.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let lines = tokio::select! {
                event = events.next() => match event {
                    Some(event) => teller.tell(&self.subject, event),
                    None => return Ok(()),
                },
                _ = interval.tick() => teller.statistics(&self.subject),
                _ = outages.tick(), if teller.has_outages() => teller.outages(&self.subject),
            };
            for line in lines {
                let mut text = serde_json::to_vec(&line)?;
                text.push(b'\n');
                socket.write_all(&text).await?;
            }
        }
    }
}

async fn say(socket: &mut UnixStream, answer: &impl Serialize) -> io::Result<()> {
    let said = async {
        socket.write_all(&serde_json::to_vec(answer)?).await?;
        socket.shutdown().await
    };
    tokio::time::timeout(LIMIT, said).await?
}

pub(super) async fn serve(listener: UnixListener, answerer: Answerer) {
    let (answerer, followers) = (Arc::new(answerer), Arc::new(Semaphore::new(MAX_FOLLOWERS)));
    // Dropped with this: nobody is answered when the command has ended.
    let mut clients = JoinSet::new();
    loop {
        while clients.len() >= MAX_CLIENTS {
            clients.join_next().await;
        }
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((socket, _)) => {
                    let (answerer, followers) = (answerer.clone(), followers.clone());
                    clients.spawn(FutureExt::boxed(async move {
                        if let Err(error) = answerer.answer(socket, &followers).await {
                            tracing::debug!(%error, "cannot answer a status question");
                        }
                    }));
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            },
            Some(_) = clients.join_next() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_answer_is_a_report_or_says_why_there_is_none() {
        let report = Report { command: "expose".to_owned(), pid: 7, ..Report::default() };
        let said = serde_json::to_vec(&report).unwrap();
        assert!(matches!(Answer::read(&said), Ok(Answer::Report(read)) if read.pid == 7));
        let said = serde_json::to_vec(&Answer::Refusal { error: "no".to_owned() }).unwrap();
        assert!(matches!(Answer::read(&said), Ok(Answer::Refusal { error }) if error == "no"));
        for other in ["", "{}", "[]", "\"error\""] {
            assert!(Answer::read(other.as_bytes()).is_err(), "{other}");
        }
    }
}
