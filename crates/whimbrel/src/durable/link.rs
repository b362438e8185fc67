//! The task of a connection that carries journals.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use whimbrel_transport::{CloseCode, Connection, FlowError, FlowId, JournalChannel};

use super::error::StateError;
use super::hub::Hub;
use super::ledger::Ledger;
use super::outgoing::Room;
use super::session::{Session, Step};
use super::wire::Violation;
use super::{MAX_MESSAGE, lock};

/// What a note takes beside its message, at most.
const NOTE_HEADER: u64 = 64;
/// Pause before a store that cannot be read is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Has a connection carry journals from now on, which it may do already.
///
/// # Errors
/// [`StateError::Unsupported`] if the peer does not keep any, [`StateError::Closed`] if it is over.
pub(super) async fn attach(hub: &Arc<Hub>, connection: &Connection) -> Result<(), StateError> {
    let channel = connection.journal_channel().await.map_err(|error| match error {
        FlowError::ConnectionClosed(_) => StateError::Closed,
        _ => StateError::Unsupported,
    })?;
    if connection.largest_message() < MAX_MESSAGE as u64 + NOTE_HEADER {
        return Err(StateError::Unsupported);
    }
    let added = lock(&hub.ledger).add_link(connection.id(), connection.peer_id());
    if let Some((id, wake)) = added {
        let leave = Leave { ledger: hub.ledger.clone(), id };
        hub.run_link(run(hub.clone(), channel, leave, wake));
    }
    Ok(())
}

/// Takes the connection out of the ledger, also when its task is given up.
struct Leave {
    ledger: Arc<Mutex<Ledger>>,
    id: u64,
}

impl Drop for Leave {
    fn drop(&mut self) {
        lock(&self.ledger).remove_link(self.id);
    }
}

enum End {
    Closed,
    Superseded,
    Violation(Violation),
}

async fn run(hub: Arc<Hub>, channel: JournalChannel, leave: Leave, wake: Arc<Notify>) {
    let connection = channel.connection();
    let session = Mutex::new(Session::new(leave.id, connection.peer_id()));
    let end = tokio::select! {
        end = listen(&hub, &channel, &session, &wake) => end,
        end = speak(&hub, &channel, &session, &wake) => end,
    };
    drop(leave);
    match end {
        End::Closed => {}
        End::Superseded => connection.abort(CloseCode::NONE, "the process that had it is gone"),
        End::Violation(Violation(what)) => {
            tracing::warn!(peer = %connection.peer_id(), what, "a peer's journals make no sense");
            connection.abort(CloseCode::PROTOCOL, what);
        }
    }
}

/// Reads messages. `None` if that failed, for now or for good.
async fn read(hub: &Hub, journal: u64, room: Room) -> Option<Vec<(u64, Vec<u8>)>> {
    let error = match hub.store.read(journal, room).await {
        Ok(messages) if messages.first().is_some_and(|(number, _)| *number == room.from) => {
            return Some(messages);
        }
        Ok(_) => {
            let (file, detail) = (hub.store.path().to_owned(), format!("message {} is missing", room.from));
            StateError::Damaged { file, detail }
        }
        Err(error) => error,
    };
    if may_be_read_later(hub, journal, room, error) {
        hub.store.tidy();
        tokio::time::sleep(RETRY).await;
    }
    None
}

/// Whether it makes sense to try again after a while. If not, the journal is broken, or needs no reading.
fn may_be_read_later(hub: &Hub, journal: u64, room: Room, error: StateError) -> bool {
    let mut ledger = lock(&hub.ledger);
    // It may have been acknowledged on another connection meanwhile.
    if ledger.contents(journal).is_none_or(|(_, _, first, _)| first > room.from) {
        return false;
    }
    tracing::error!(%error, "durable messages cannot be read");
    let is_damaged = matches!(error, StateError::Damaged { .. } | StateError::Format { .. });
    if is_damaged {
        ledger.break_off(journal, error);
    }
    !is_damaged
}

/// Takes what the peer says.
async fn listen(hub: &Hub, channel: &JournalChannel, session: &Mutex<Session>, wake: &Notify) -> End {
    loop {
        let Ok(message) = channel.recv().await else { return End::Closed };
        let heard = {
            let (mut session, mut ledger) = (lock(session), lock(&hub.ledger));
            match message.flow {
                FlowId(0) => session.hear_note(&mut ledger, &message.data),
                _ => session.hear_answer(&mut ledger, &message.data),
            }
        };
        if let Err(violation) = heard {
            return End::Violation(violation);
        }
        if message.flow != FlowId(0) {
            hub.store.tidy();
        }
        wake.notify_one();
    }
}

/// Says what there is to say.
async fn speak(hub: &Hub, channel: &JournalChannel, session: &Mutex<Session>, wake: &Notify) -> End {
    loop {
        let step = lock(session).step(&lock(&hub.ledger));
        let said = match step {
            Step::Note(note) => channel.note(note).await,
            Step::Answer(answer) => channel.answer(answer).await,
            Step::Read { index, journal, room } => {
                let Some(messages) = read(hub, journal, room).await else { continue };
                let notes = lock(session).read(index, &messages);
                let mut said = Ok(());
                for note in notes {
                    said = channel.note(note).await;
                    if said.is_err() {
                        break;
                    }
                }
                said
            }
            Step::Wait => {
                wake.notified().await;
                Ok(())
            }
            Step::Leave => return End::Superseded,
        };
        if said.is_err() {
            return End::Closed;
        }
    }
}
