//! Messages to several peers at once.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::IpAddr;
use std::time::Duration;

use tokio::time::timeout;
use whimbrel::names::{Admission, Limits, MemoryStore, Service};
use whimbrel::{
    Allow, Class, CloseCode, ConnectError, Connection, Delivery, Endpoint, FlowOptions, Group, GroupError,
    GroupOptions, ListenOptions, Listener, ManualMonitor, Outcome, SecretKey, SendError, SendOptions,
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
    assert_eq!(*absent.member(), keys[1].id());
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

/// The class of the next message.
async fn heard_as(member: &Member) -> Class {
    timeout(LIMIT, member.connection.recv_message()).await.expect("nothing came").unwrap().class
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_may_have_a_class_of_its_own_until_it_is_removed() {
    let mut speaker = Speaker::at(221, FlowOptions::new(Class::RELIABLE_SEQUENCED)).await;
    let keys = keys(2);
    assert!(speaker.group.set_options(keys[1].id(), FlowOptions::new(Class::RELIABLE)));
    let members = [speaker.join(&keys[0], 222).await, speaker.join(&keys[1], 223).await];
    for delivery in speaker.group.send("to both", SendOptions::default()) {
        assert_eq!(outcome(delivery).await, Ok(Outcome::Delivered));
    }
    assert_eq!(heard_as(&members[0]).await, Class::RELIABLE_SEQUENCED);
    assert_eq!(heard_as(&members[1]).await, Class::RELIABLE);

    assert!(speaker.group.remove(keys[1].id()));
    speaker.group.add(&members[1].accepted).await.unwrap();
    speaker.group.send("as all get it", SendOptions { silent: true, ..SendOptions::default() });
    for member in &members {
        assert_eq!(heard_as(member).await, Class::RELIABLE_SEQUENCED);
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
        all.partition::<Vec<_>, _>(|delivery| *delivery.member() == key.id())
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

const TEAM: &str = "team.ada@example.org";

/// An endpoint with a name service, at an address of its own.
async fn named(key: &SecretKey, service: &Service, last: u8) -> Endpoint {
    let builder = Endpoint::builder().identity(key.clone()).names(service.addr());
    builder.monitor(ManualMonitor::new([ip(last)])).bind().await.unwrap()
}

/// A member that is called, and hears whatever comes.
async fn listening(key: &SecretKey, name: &str, service: &Service, last: u8) -> Called {
    let endpoint = named(key, service, last).await;
    let options = ListenOptions::named(name).allow(Allow::Any);
    let mut listener = endpoint.listen(options).await.unwrap();
    let (sender, heard) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(connection) = listener.accept().await {
            let sender = sender.clone();
            tokio::spawn(async move {
                while let Ok(message) = connection.recv_message().await {
                    let _ = sender.send(String::from_utf8(message.data).unwrap());
                }
            });
        }
    });
    Called { heard, endpoint }
}

struct Called {
    heard: tokio::sync::mpsc::UnboundedReceiver<String>,
    endpoint: Endpoint,
}

impl Called {
    async fn hears(&mut self) -> String {
        timeout(LIMIT, self.heard.recv()).await.expect("nothing came").unwrap()
    }
}

async fn service(last: u8) -> Service {
    let at = ManualMonitor::new([ip(last)]);
    let endpoint = whimbrel::transport::Endpoint::builder().monitor(at).bind().await.unwrap();
    Service::start(endpoint, MemoryStore::new(), Admission::any(), Limits::default()).await.unwrap()
}

/// As a member of a record: the first by its name, another one by its key.
fn by_name(name: &str) -> whimbrel::Member {
    name.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_stands_for_members_that_come_and_go_while_messages_are_sent() {
    let service = service(100).await;
    let (ada, bob, cleo, dan) =
        (SecretKey::generate(), SecretKey::generate(), SecretKey::generate(), SecretKey::generate());
    let keeper = named(&ada, &service, 101).await;
    keeper.register_user("ada@example.org").await.unwrap();
    let mut bobs = listening(&bob, "bob@example.org", &service, 102).await;
    let mut cleos = listening(&cleo, "cleo@example.org", &service, 103).await;
    let team = [by_name("bob@example.org"), cleo.id().into(), by_name("dan@example.org"), ada.id().into()];
    let members = keeper.update_group(TEAM, GroupOptions::default(), |it| it.extend(team)).await.unwrap();
    assert_eq!(members.len(), 4);
    let group = keeper.group(TEAM, FlowOptions::new(Class::RELIABLE_SEQUENCED)).await.unwrap();
    assert_eq!(group.members().len(), 3, "the speaker itself is none: {:?}", group.members());
    let told = group.send("to all", SendOptions::default());
    assert_eq!((bobs.hears().await, cleos.hears().await), ("to all".into(), "to all".into()));
    // Dan has been away so far.
    let mut dans = listening(&dan, "dan@example.org", &service, 104).await;
    assert_eq!(dans.hears().await, "to all");
    for delivery in told {
        assert_eq!(outcome(delivery).await, Ok(Outcome::Delivered));
    }
    keeper
        .update_group(TEAM, GroupOptions::default(), |it| it.retain(|member| *member != cleo.id()))
        .await
        .unwrap();
    timeout(LIMIT, async {
        while group.members().len() > 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .expect("the change is followed");
    group.send("without Cleo", SendOptions { silent: true, ..SendOptions::default() });
    assert_eq!((bobs.hears().await, dans.hears().await), ("without Cleo".into(), "without Cleo".into()));
    assert!(cleos.heard.try_recv().is_err());
    // Another member reads the group and speaks to it.
    let other = bobs.endpoint.group(TEAM, FlowOptions::new(Class::RELIABLE)).await.unwrap();
    other.send("from Bob", SendOptions { silent: true, ..SendOptions::default() });
    assert_eq!(dans.hears().await, "from Bob");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_and_an_endpoint_are_told_apart_and_a_group_is_shown_to_its_members() {
    let service = service(110).await;
    let (ada, bob, eve) = (SecretKey::generate(), SecretKey::generate(), SecretKey::generate());
    let keeper = named(&ada, &service, 111).await;
    keeper.register_user("ada@example.org").await.unwrap();
    let bobs = listening(&bob, "bob@example.org", &service, 112).await;
    let options = GroupOptions::default;
    keeper.update_group(TEAM, options(), |it| it.extend([by_name("bob@example.org")])).await.unwrap();
    let wrong = bobs.endpoint.connect(TEAM).await.unwrap_err();
    assert!(matches!(wrong, ConnectError::Group(_)), "{wrong}");
    let flow = || FlowOptions::new(Class::RELIABLE);
    let wrong = keeper.group("bob@example.org", flow()).await.unwrap_err();
    assert!(matches!(wrong, GroupError::NotAGroup(_)), "{wrong}");
    let desk = ListenOptions::named("desk.ada@example.org").allow(Allow::Any);
    let _desk = keeper.listen(desk).await.unwrap();
    for (name, is_expected) in [
        ("desk.ada@example.org", (|it| matches!(it, GroupError::NotAGroup(_))) as fn(&GroupError) -> bool),
        ("ada@example.org", |it| matches!(it, GroupError::UserName(_))),
        ("team.bob@example.org", |it| matches!(it, GroupError::Names(_))),
    ] {
        let wrong = keeper.update_group(name, options(), |_| {}).await.unwrap_err();
        assert!(is_expected(&wrong), "{name}: {wrong}");
    }
    let stranger = named(&eve, &service, 113).await;
    let wrong = stranger.group_members(TEAM).await.unwrap_err();
    assert!(matches!(wrong, GroupError::Names(_)), "{wrong}");
    assert_eq!(bobs.endpoint.group_members(TEAM).await.unwrap(), [by_name("bob@example.org")]);
}
