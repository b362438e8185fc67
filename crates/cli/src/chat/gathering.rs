//! One person and the members of a group: what is typed goes to all of them, what each says and whether it is
//! there is shown. The members hear nothing of each other.

use futures_util::FutureExt;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Result;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use whimbrel::{Endpoint, Group, GroupChanges, Member};
use whimbrel_base::{ConnectionId, Name};
use whimbrel_transport::{
    Class, CloseCode, Connection, ConnectionEvent, FlowOptions, Outcome, SendError, SendOptions,
};

use super::message::Message;
use super::{MAX_LINE, News, Partner, Show, Typed, parting_words};
use crate::failure::{self, Failure};
use crate::plain::plain;

/// How long the end may take: what was typed is delivered first to those who are there.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);
/// News of members that wait to be shown. Further ones wait with the members.
const BACKLOG: usize = 64;

/// A conversation with a group.
pub(crate) struct Gathering {
    group: Group,
    changes: GroupChanges,
    /// Those who are there.
    present: BTreeMap<Member, Present>,
    /// Of those who have gone before they said anything: why, as it was shown last.
    refusals: BTreeMap<Member, String>,
    news: (mpsc::Sender<Told>, mpsc::Receiver<Told>),
    followers: JoinSet<()>,
    deliveries: JoinSet<Ended>,
    /// Lines that some member does not have, by their numbers.
    lines: BTreeMap<u64, Line>,
    number: u64,
}

/// A member that is there.
struct Present {
    connection: Connection,
    partner: Partner,
    /// It was shown that it is there.
    greeted: bool,
}

/// What is to be known of a member on one of its connections.
struct Told {
    member: Member,
    connection: ConnectionId,
    what: What,
}

enum What {
    Message(Vec<u8>),
    Away(Duration),
    Back(Duration),
    Gone(String),
}

/// What became of a line with one member.
struct Ended {
    number: u64,
    member: Member,
    outcome: Result<Outcome, SendError>,
}

#[derive(Default)]
struct Line {
    /// Those of whom nothing is known yet.
    waits: BTreeSet<Member>,
    /// Those who will not get it.
    missed: BTreeSet<Member>,
}

impl Gathering {
    /// Calls the members.
    ///
    /// # Errors
    /// When the name stands for no group, or cannot be looked up.
    pub(crate) async fn begin(endpoint: &Endpoint, name: &Name, nick: Option<String>) -> Result<Self> {
        let hello = serde_json::to_vec(&Message::Hello { name: nick })?;
        let options = FlowOptions::new(Class::RELIABLE_SEQUENCED);
        let group = endpoint.group_with_greeting(name, options, hello).await.map_err(failure::of_group)?;
        let changes = group.changes();
        Ok(Self {
            group,
            changes,
            present: BTreeMap::new(),
            refusals: BTreeMap::new(),
            news: mpsc::channel(BACKLOG),
            followers: JoinSet::new(),
            deliveries: JoinSet::new(),
            lines: BTreeMap::new(),
            number: 0,
        })
    }

    /// Goes on until the user ends it.
    ///
    /// # Errors
    /// When something cannot be shown, or some member did not get a line by the end.
    pub(crate) async fn run(mut self, show: &mut impl Show) -> Result<()> {
        let called: Vec<String> = self.group.members().iter().map(|member| self.name(member)).collect();
        show.show(&News::Note(match called.len() {
            0 => "the group has no members beside you".to_owned(),
            _ => format!("calling {}", called.join(", ")),
        }))?;
        self.look(show)?;
        loop {
            tokio::select! {
                typed = show.typed() => match typed {
                    Typed::Line(text) if text.is_empty() => {}
                    Typed::Line(text) => self.say(text, show)?,
                    Typed::TooLong => show.show(&News::Note(format!(
                        "a line has at most {MAX_LINE} bytes; this one was not sent"
                    )))?,
                    Typed::End => return self.end(show).await,
                },
                Some(ended) = self.deliveries.join_next() => self.delivered(ended, show)?,
                Some(told) = self.news.1.recv() => self.hear(told, show)?,
                true = self.changes.next() => self.look(show)?,
                Some(_) = self.followers.join_next() => {}
            }
        }
    }

    /// What a member is called here.
    fn name(&self, member: &Member) -> String {
        match (self.present.get(member), member) {
            (Some(present), _) => present.partner.name(),
            (None, Member::Name(name)) => name.to_string(),
            (None, Member::Key(id)) => id.short(),
        }
    }

    /// The members, or their connections, are not as before.
    fn look(&mut self, show: &mut impl Show) -> Result<()> {
        let members = self.group.members();
        let out: Vec<Member> =
            self.present.keys().filter(|member| !members.contains(member)).cloned().collect();
        for member in out {
            let name = self.name(&member);
            self.present.remove(&member);
            show.show(&News::Of(name, Box::new(News::Left("no member any more".to_owned()))))?;
        }
        self.refusals.retain(|member, _| members.contains(member));
        for (member, connection) in self.group.here() {
            if self.present.get(&member).is_some_and(|known| known.connection.id() == connection.id()) {
                continue;
            }
            let known_as = match &member {
                Member::Name(name) => Some(name.to_string()),
                Member::Key(_) => None,
            };
            let partner = Partner::new(connection.peer_id(), known_as);
            self.followers.spawn(FutureExt::boxed(follow(
                member.clone(),
                connection.clone(),
                self.news.0.clone(),
            )));
            self.present.insert(member, Present { connection, partner, greeted: false });
        }
        Ok(())
    }

    fn say(&mut self, text: String, show: &mut impl Show) -> Result<()> {
        let line = serde_json::to_vec(&Message::Line { text: text.clone() })?;
        let deliveries = self.group.send(line, SendOptions::default());
        if deliveries.is_empty() {
            return show.show(&News::Note("nobody is in the group; this was not sent".to_owned()));
        }
        self.number += 1;
        let (number, line) = (self.number, self.lines.entry(self.number).or_default());
        for delivery in deliveries {
            let member = delivery.member().clone();
            line.waits.insert(member.clone());
            self.deliveries
                .spawn(FutureExt::boxed(async move { Ended { number, member, outcome: delivery.await } }));
        }
        show.show(&News::Sent(number, text))
    }

    fn delivered(
        &mut self,
        ended: Result<Ended, tokio::task::JoinError>,
        show: &mut impl Show,
    ) -> Result<()> {
        let Ended { number, member, outcome } = ended?;
        let name = self.name(&member);
        let Some(line) = self.lines.get_mut(&number) else { return Ok(()) };
        line.waits.remove(&member);
        let news = match outcome {
            Ok(Outcome::Delivered) => News::Of(name, Box::new(News::Delivered(number))),
            Err(SendError::Full) => {
                line.missed.insert(member);
                News::Note(format!("too much waits for {name}, which does not get [{number}]"))
            }
            // The group's flows end with their connections alone.
            Ok(_) | Err(_) => {
                line.missed.insert(member);
                News::Note(format!("{name} may not have got [{number}]"))
            }
        };
        let everybody_has_it = line.waits.is_empty() && line.missed.is_empty();
        show.show(&news)?;
        if everybody_has_it {
            self.lines.remove(&number);
            show.show(&News::Delivered(number))?;
        }
        Ok(())
    }

    fn hear(&mut self, told: Told, show: &mut impl Show) -> Result<()> {
        let Told { member, connection, what } = told;
        let Some(present) = self.present.get_mut(&member).filter(|of| of.connection.id() == connection)
        else {
            return Ok(());
        };
        let of = |present: &Present, news| News::Of(present.partner.name(), Box::new(news));
        match what {
            What::Message(data) => match Message::decode(&data) {
                Some(Message::Hello { name }) if !present.greeted => {
                    present.partner.call(name);
                    self.refusals.remove(&member);
                    greet(present, show)
                }
                Some(Message::Line { text }) => {
                    greet(present, show)?;
                    show.show(&of(present, News::Said(plain(&text, MAX_LINE))))
                }
                Some(Message::Hello { .. } | Message::Other) => Ok(()),
                None => {
                    tracing::info!(%member, "a member says what no chat says");
                    Ok(())
                }
            },
            What::Away(since) => show.show(&of(present, News::Away(since))),
            What::Back(after) => show.show(&of(present, News::Back(after))),
            What::Gone(why) => {
                let (name, greeted) = (present.partner.name(), present.greeted);
                self.present.remove(&member);
                if greeted {
                    return show.show(&News::Of(name, Box::new(News::Left(why))));
                }
                // It is called again and again, and may say the same each time.
                if self.refusals.insert(member, why.clone()).as_ref() == Some(&why) {
                    return Ok(());
                }
                show.show(&News::Note(format!("{name} does not talk now: {why}")))
            }
        }
    }

    /// Delivers what was typed to those who are there, and ends.
    async fn end(mut self, show: &mut impl Show) -> Result<()> {
        let deadline = Instant::now() + CLOSE_LIMIT;
        while self.lines.values().flat_map(|line| &line.waits).any(|member| self.present.contains_key(member))
        {
            let told = tokio::select! {
                Some(ended) = self.deliveries.join_next() => Ok(ended),
                Some(told) = self.news.1.recv() => Err(told),
                () = tokio::time::sleep_until(deadline) => break,
            };
            match told {
                Ok(ended) => self.delivered(ended, show)?,
                Err(told) => self.hear(told, show)?,
            }
        }
        // Nobody is called any more.
        drop(self.group);
        let mut ends = JoinSet::new();
        for Present { connection, .. } in std::mem::take(&mut self.present).into_values() {
            ends.spawn(FutureExt::boxed(async move {
                connection.close(CloseCode::NONE, "", CLOSE_LIMIT).await.is_ok()
            }));
        }
        // One that does not answer is left alone.
        while let Ok(Some(_)) = timeout_at(deadline, ends.join_next()).await {}
        match self.lines.len() {
            0 => Ok(()),
            1 => Err(Failure::new(Failure::UNREACHABLE, "one line did not reach everybody").into()),
            lines => {
                Err(Failure::new(Failure::UNREACHABLE, format!("{lines} lines did not reach everybody"))
                    .into())
            }
        }
    }
}

fn greet(present: &mut Present, show: &mut impl Show) -> Result<()> {
    if std::mem::replace(&mut present.greeted, true) {
        return Ok(());
    }
    show.show(&News::Of(present.partner.name(), Box::new(News::Here(present.partner.clone()))))
}

/// Tells what happens on a member's connection, to its end.
async fn follow(member: Member, connection: Connection, told: mpsc::Sender<Told>) {
    let (id, mut events) = (connection.id(), connection.events());
    loop {
        let what = tokio::select! {
            // What has arrived is heard before the end.
            biased;
            message = connection.recv_message() => match message {
                Ok(message) => What::Message(message.data),
                Err(_) => What::Gone(parting_words(&connection)),
            },
            event = events.next() => match event {
                Some(ConnectionEvent::Unreachable { lasts }) => What::Away(lasts),
                Some(ConnectionEvent::Reachable { after }) => What::Back(after),
                Some(_) => continue,
                None => What::Gone(parting_words(&connection)),
            },
        };
        let is_over = matches!(what, What::Gone(_));
        let sent = told.send(Told { member: member.clone(), connection: id, what }).await;
        if is_over || sent.is_err() {
            return;
        }
    }
}
