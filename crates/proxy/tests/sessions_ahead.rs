//! While the device before is asked how far its program is, the new one gets what the one before will not
//! have.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::sessions_support::hand::{
    AHEAD, Awaiting, COUNT, DATA, Hand, MOVED, PAUSE, RESUME, WHOLE, number, session, take, taken,
};
use crate::sessions_support::{Device, On, Server, Stage, endpoint, patient, program, random, within};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use whimbrel::{Allow, ListenOptions};
use whimbrel_proxy::{Answer, SessionError, SessionId, SessionsAt, Status, Takers};

/// Less than a gateway keeps of a session, and more than is on its way to a device that reads nothing.
const SIZE: usize = 900_000;
/// What the phone's program has.
const READ: usize = 100_000;

/// A phone that reads slowly and has a second stream, and a desk that may take its session.
struct Moving {
    file: Arc<Vec<u8>>,
    phone: Hand,
    control: Hand,
    desk: Device,
    id: SessionId,
    server: Server,
    _devices: (Stage, Device),
}

impl Moving {
    async fn new(net: u8) -> Self {
        let mut settings = patient();
        // All are near here.
        settings.ahead_from = 0;
        let (stage, file) = (Stage::with(net, settings).await, random(net.into(), SIZE));
        let (device, desk, server, mut phone) = session(&stage, file.clone(), SIZE).await;
        let id = within("a list comes", desk.sessions.list()).await.unwrap()[0].id;
        let control = Hand::control(&device, id).await;
        phone.have(READ).await;
        Self { file, phone, control, desk, id, server, _devices: (stage, device) }
    }

    /// The desk takes it, and has had so much when the phone is yet to answer.
    async fn awaiting(&mut self, bytes: usize) -> Awaiting {
        let mut awaiting = Hand::begin_ahead(&self.desk, self.id).await;
        self.control.wait_for(PAUSE).await;
        while awaiting.bytes.len() < bytes {
            assert!(awaiting.next().await, "there is no answer yet");
        }
        awaiting
    }

    /// How far the phone's program is, if it reads no more, or all that was said to it: that is more than was
    /// on its way.
    async fn taken(&mut self, reads_on: bool) -> usize {
        let pause = Duration::from_millis(500);
        while reads_on && tokio::time::timeout(pause, self.phone.hear()).await.is_ok() {}
        self.phone.came
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn later_bytes_come_while_the_device_before_is_asked_and_each_byte_comes_once() {
    for (net, reads_on) in [(220, false), (221, true)] {
        let mut moving = Moving::new(net).await;
        let mut awaiting = moving.awaiting(50_000).await;
        let taken = moving.taken(reads_on).await;
        moving.phone.say_paused(taken as u64, 0, WHOLE).await;
        while awaiting.next().await {}
        let (start, ahead) = (usize::try_from(awaiting.start).unwrap(), awaiting.bytes.clone());
        let end = start + ahead.len();
        assert!(ahead == moving.file[start..end], "not what is there");
        assert_eq!(start < taken, reads_on, "they begin behind what is on its way: {start} {taken}");
        let mut desk = awaiting.granted().await;
        assert_eq!(desk.came, taken, "where the phone's program is");
        desk.say(COUNT, &(taken as u64).to_be_bytes()).await;
        let (mut all, mut times) = (Vec::new(), 0);
        while taken + all.len() < SIZE {
            match desk.hear_all().await {
                (DATA, body) => all.extend_from_slice(&body),
                (AHEAD, body) => {
                    assert_eq!((taken.max(start), end as u64), (taken + all.len(), number(&body)));
                    all.extend_from_slice(&ahead[taken.max(start) - start..]);
                    times += 1;
                }
                _ => {}
            }
        }
        assert!(all == moving.file[taken..] && times == 1, "{} bytes, {times} times", all.len());
        moving.control.wait_for(MOVED).await;
    }
}

/// What the device before has in the end is a guess: it may be less or more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wherever_the_program_before_is_the_new_one_goes_on_from_there() {
    for (net, reads_on) in [(222, false), (223, true)] {
        let mut moving = Moving::new(net).await;
        let taking = take(&moving.desk).await;
        moving.control.wait_for(PAUSE).await;
        // Bytes go ahead meanwhile.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let taken_there = moving.taken(reads_on).await;
        moving.phone.say_paused(taken_there as u64, 0, WHOLE).await;
        let mut new = program(taken(taking).await.unwrap()).await;
        assert_eq!(new.offset, taken_there as u64);
        let (rest, is_whole) = new.rest().await;
        assert!(is_whole && rest == moving.file[taken_there..], "{taken_there}: {} bytes", rest.len());
        assert_eq!(moving.server.connections(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_came_ahead_of_a_refusal_is_forgotten() {
    let Moving { file, mut phone, mut control, desk, .. } = Moving::new(224).await;
    let taking = take(&desk).await;
    control.wait_for(PAUSE).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    // Its program has said something that cannot be sent: it stays.
    phone.say_paused(READ as u64, 0, 0).await;
    let refused = taken(taking).await.err().expect("it is refused").to_string();
    assert!(refused.contains("try again"), "{refused}");
    control.wait_for(RESUME).await;
    phone.have(READ + 10_000).await;
    let came = phone.came;
    let taking = take(&desk).await;
    control.wait_for(PAUSE).await;
    phone.say_paused(came as u64, 0, WHOLE).await;
    let (rest, is_whole) = program(taken(taking).await.unwrap()).await.rest().await;
    assert!(is_whole && rest == file[came..]);
}

/// It is not worth it: the answer would come later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_goes_ahead_of_an_answer_that_is_near() {
    let mut settings = patient();
    settings.ahead_from = 1_000_000;
    let stage = Stage::with(226, settings).await;
    let (_phone, desk, _server, mut phone) = session(&stage, random(1, SIZE), SIZE).await;
    let id = within("a list comes", desk.sessions.list()).await.unwrap()[0].id;
    phone.have(READ).await;
    let asking = Hand::ask_ahead(&desk, id).await;
    phone.wait_for(PAUSE).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    phone.say_paused(READ as u64, 0, WHOLE).await;
    assert_eq!(Hand::granted(asking).await.came, READ);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_older_gateway_is_asked_in_its_own_words() {
    let gateway = endpoint(225, 1).await.0;
    let mut listener = gateway.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
    let serving = tokio::spawn(async move {
        let (connection, mut asked) = (listener.accept().await.unwrap(), Vec::new());
        for status in [Status::NotUnderstood, Status::NoSession] {
            let mut stream = connection.accept_stream().await.unwrap();
            let mut request = [0; 4 + 16 + 4 + 1];
            stream.read_exact(&mut request).await.unwrap();
            asked.push(request[1]);
            stream.write_all(&Answer::new(status, "").encode()).await.unwrap();
            // The device may have heard it, and listen no more.
            let _ = stream.finish();
        }
        (connection, asked)
    });
    let device = endpoint(225, 2).await.0;
    let connection = within("it connects", device.connect(gateway.ticket(None))).await.unwrap();
    let sessions = SessionsAt::new(Arc::new(On(connection)));
    let id = SessionId::from_bytes([7; 16]);
    let taken = within("it is answered", sessions.take(id, 0, Takers::default())).await;
    assert!(matches!(taken, Err(SessionError::None(_))));
    assert_eq!(serving.await.unwrap().1, [11, 2]);
}
