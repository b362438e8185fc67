//! Messages to several peers at once.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::IpAddr;
use std::time::Duration;

use tokio::time::timeout;
use whimbrel::{
    Allow, Class, CloseCode, Connection, Delivery, Endpoint, FlowOptions, Group, ListenOptions, Listener,
    ManualMonitor, Outcome, SecretKey, SendError, SendOptions,
};

const LIMIT: Duration = Duration::from_secs(20);

fn ip(last: u8) -> IpAddr {
    IpAddr::from([127, 0, 195, last])
}

async fn endpoint(key: &SecretKey, at: &ManualMonitor) -> Endpoint {
    Endpoint::builder().identity(key.clone()).monitor(at.clone()).bind().await.unwrap()
}

/// One that speaks to a group, and can be called.
struct Speaker {
    endpoint: Endpoint,
    listener: Listener,
    group: Group,
}

impl Speaker {
    async fn at(last: u8, options: FlowOptions) -> Self {
        let endpoint = endpoint(&SecretKey::generate(), &ManualMonitor::new([ip(last)])).await;
        let listener = endpoint.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
        Self { endpoint, listener, group: Group::new(options) }
    }

    /// A member calls, and is taken in.
    async fn join(&mut self, key: &SecretKey, last: u8) -> Member {
        let at = ManualMonitor::new([ip(last)]);
        let endpoint = endpoint(key, &at).await;
        let connection = endpoint.connect(self.endpoint.addr()).await.unwrap();
        let accepted = self.listener.accept().await.unwrap();
        self.group.add(&accepted).await.unwrap();
        Member { connection, accepted, at, _endpoint: endpoint }
    }
}

struct Member {
    connection: Connection,
    /// The speaker's end.
    accepted: Connection,
    at: ManualMonitor,
    _endpoint: Endpoint,
}

impl Member {
    async fn hears(&self) -> String {
        let message = timeout(LIMIT, self.connection.recv_message()).await.expect("nothing came").unwrap();
        String::from_utf8(message.data).unwrap()
    }
}

async fn outcome(delivery: Delivery) -> Result<Outcome, SendError> {
    timeout(LIMIT, delivery).await.expect("no outcome")
}

fn keys(n: usize) -> Vec<SecretKey> {
    let mut keys: Vec<SecretKey> = (0..n).map(|_| SecretKey::generate()).collect();
    keys.sort_by_key(|key| key.id());
    keys
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_member_gets_each_message_and_one_that_is_out_of_reach_what_is_alive_when_it_returns() {
    let mut speaker = Speaker::at(1, FlowOptions::new(Class::RELIABLE_SEQUENCED)).await;
    let keys = keys(3);
    let members =
        [speaker.join(&keys[0], 2).await, speaker.join(&keys[1], 3).await, speaker.join(&keys[2], 4).await];
    assert_eq!(speaker.group.members(), [keys[0].id(), keys[1].id(), keys[2].id()]);
    for delivery in speaker.group.send("to all", SendOptions::default()) {
        assert_eq!(outcome(delivery).await, Ok(Outcome::Delivered));
    }
    members[1].at.set([]);
    // What leaves before the speaker knows is on its way, and its outcome open until the member is back.
    while members[1].accepted.stats().unreachable.is_none() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut told = speaker.group.send("kept", SendOptions::default());
    let brief = SendOptions { lifetime: Some(Duration::from_millis(300)), ..SendOptions::default() };
    let brief = speaker.group.send("brief", brief);
    let absent = told.remove(1);
    assert_eq!(absent.member(), keys[1].id());
    for delivery in told {
        assert_eq!(outcome(delivery).await, Ok(Outcome::Delivered), "nobody waits for the absent one");
    }
    let mut brief = brief.into_iter();
    assert_eq!(outcome(brief.next().unwrap()).await, Ok(Outcome::Delivered));
    assert_eq!(outcome(brief.next().unwrap()).await, Ok(Outcome::Expired));
    members[1].at.set([ip(5)]);
    assert_eq!(outcome(absent).await, Ok(Outcome::Delivered));
    speaker.group.send("again", SendOptions { silent: true, ..SendOptions::default() });
    for (member, heard) in members.iter().zip([
        &["to all", "kept", "brief", "again"][..],
        &["to all", "kept", "again"],
        &["to all", "kept", "brief", "again"],
    ]) {
        for text in heard {
            assert_eq!(member.hears().await, *text);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_for_an_expected_member_is_bounded_and_arrives_in_order_when_it_comes() {
    let options = FlowOptions { queue: 4000, ..FlowOptions::new(Class::RELIABLE_SEQUENCED) };
    let mut speaker = Speaker::at(11, options).await;
    let (key, other) = (SecretKey::generate(), SecretKey::generate());
    assert!(speaker.group.expect(key.id()) && !speaker.group.expect(key.id()));
    assert!(speaker.group.expect(other.id()));
    let send = |text: &str, lifetime| {
        let options = SendOptions { lifetime, ..SendOptions::default() };
        let all = speaker.group.send(text, options).into_iter();
        all.partition::<Vec<_>, _>(|delivery| delivery.member() == key.id())
    };
    let soon = Some(Duration::from_millis(100));
    let (dead, _) = send("too late", soon);
    for delivery in dead {
        assert_eq!(outcome(delivery).await, Ok(Outcome::Expired));
    }
    let (first, first_of_other) = send("first", None);
    let (second, _) = send("second", Some(Duration::from_secs(60)));
    let (large, _) = send(&"x".repeat(4000), None);
    for delivery in large {
        assert_eq!(outcome(delivery).await, Err(SendError::Full));
    }
    let member = speaker.join(&key, 12).await;
    assert_eq!((member.hears().await, member.hears().await), ("first".into(), "second".into()));
    for delivery in first.into_iter().chain(second) {
        assert_eq!(outcome(delivery).await, Ok(Outcome::Delivered));
    }
    assert!(speaker.group.remove(other.id()) && !speaker.group.remove(other.id()));
    for delivery in first_of_other {
        assert_eq!(outcome(delivery).await, Ok(Outcome::Lost));
    }
}

/// Its process ended, and another one of the same identity came.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_whose_connection_ended_is_away_until_it_is_added_again() {
    let mut speaker = Speaker::at(21, FlowOptions::new(Class::RELIABLE_SEQUENCED)).await;
    let key = SecretKey::generate();
    let member = speaker.join(&key, 22).await;
    speaker.group.send("before", SendOptions { silent: true, ..SendOptions::default() });
    assert_eq!(member.hears().await, "before");
    member.connection.close(CloseCode::NONE, "", LIMIT).await.unwrap();
    drop(member);
    let mut told = speaker.group.send("meanwhile", SendOptions::default());
    assert_eq!(speaker.group.members(), [key.id()]);
    let member = speaker.join(&key, 23).await;
    assert_eq!(member.hears().await, "meanwhile");
    assert_eq!(outcome(told.remove(0)).await, Ok(Outcome::Delivered));
    // It came twice: the newer connection counts.
    let newer = speaker.join(&key, 24).await;
    speaker.group.send("after", SendOptions { silent: true, ..SendOptions::default() });
    assert_eq!(newer.hears().await, "after");
}
