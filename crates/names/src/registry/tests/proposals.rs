//! Proposals between users, over each store.

use super::*;
use crate::proposal::{Decision, Proposal, ProposalError, ProposalId, Wished};
use crate::store::proposals::{MAX_ASKED, MAX_MADE, MAX_NEW_DEVICES};
use crate::store::{Kept, RedbStore};

const DAY: u64 = 86_400;
const ADA: &str = "ada@example.org";
const BOB: &str = "bob@example.org";

/// A registry with ada (key 1), bob (key 2), and bob's phone (key 3), which has never published anything.
async fn with_users(registry: Registry) -> (Registry, Delegation) {
    registry.take(&record(&key(1), ADA, 1), START).await.unwrap();
    registry.take(&record(&key(2), BOB, 1), START).await.unwrap();
    (registry, delegation(&key(2), "phone.bob@example.org", &key(3), START))
}

/// The same over each store; the folder is the file's.
async fn each() -> Vec<(Option<tempfile::TempDir>, Registry, Delegation)> {
    let folder = tempfile::tempdir().unwrap();
    let file = RedbStore::open(folder.path().join("names.redb")).unwrap();
    let in_file = Registry::new(file, Admission::any(), Limits::default());
    let (in_memory, word) = with_users(registry()).await;
    let (in_file, _) = with_users(in_file).await;
    vec![(None, in_memory, word.clone()), (Some(folder), in_file, word)]
}

/// Bob's, by his phone, to ada.
fn of_bob(word: &Delegation, made: UnixTime) -> Proposal {
    Proposal {
        wished: Wished::Friends { from: name(BOB) },
        to: name(ADA),
        owner: key(1).id(),
        by: key(3).id(),
        made,
        expires: made.saturating_add(Duration::from_secs(7 * DAY)),
        word: Some(word.clone()),
    }
}

fn decision(about: ProposalId, accepted: bool) -> Decision {
    Decision { about, accepted, by: key(1).id(), made: START, word: None, given: None }
}

async fn seen(registry: &Registry, peer: u8, word: Option<&Delegation>, now: UnixTime) -> Vec<Kept> {
    let word = word.map(Delegation::encode);
    registry.proposals(key(peer).id(), word.as_deref(), now).await.unwrap()
}

#[tokio::test]
async fn a_proposal_reaches_all_devices_of_both_users_and_the_first_decision_stays() {
    for (_folder, registry, word) in each().await {
        let bytes = of_bob(&word, START).sign(&key(3)).unwrap();
        let id = ProposalId::of(&bytes);
        assert_eq!(registry.propose(key(3).id(), &bytes, START).await, Ok(after(7 * DAY)));
        // The same again changes nothing, also by somebody who heard it.
        assert_eq!(registry.propose(key(3).id(), &bytes, after(1)).await, Ok(after(7 * DAY)));
        let replayed = registry.propose(key(9).id(), &bytes, after(1)).await;
        assert_eq!(replayed, Err(NamesError::NotYours(key(3).id())));
        // Ada's desk, which has published nothing either, and her own key; bob's own key and his phone.
        let desk = delegation(&key(1), "desk.ada@example.org", &key(4), START);
        for (peer, word) in [(1, None), (4, Some(&desk)), (2, None), (3, Some(&word))] {
            let all = seen(&registry, peer, word, after(1)).await;
            assert_eq!(all.iter().map(|kept| kept.id).collect::<Vec<_>>(), [id], "{peer}");
            assert_eq!((all[0].bytes.as_slice(), all[0].decided.is_some()), (bytes.as_slice(), false));
        }
        assert!(seen(&registry, 9, None, after(1)).await.is_empty(), "a stranger's");
        assert!(seen(&registry, 3, None, after(1)).await.is_empty(), "without a word it is nobody's device");
        // The desk decides, and then ada otherwise.
        let by_desk = Decision { by: key(4).id(), word: Some(desk.clone()), ..decision(id, true) };
        let by_desk = by_desk.sign(&key(4)).unwrap();
        for _ in 0..2 {
            assert_eq!(registry.decide(key(4).id(), &by_desk, after(2)).await, Ok(after(7 * DAY)));
        }
        let other = decision(id, false).sign(&key(1)).unwrap();
        assert_eq!(registry.decide(key(1).id(), &other, after(3)).await, Err(NamesError::NoProposal));
        for (peer, word) in [(1, None), (4, Some(&desk)), (2, None), (3, Some(&word))] {
            let all = seen(&registry, peer, word, after(4)).await;
            assert_eq!(all[0].decided.as_ref().unwrap().bytes, by_desk, "{peer}");
        }
        // Bob knows: nothing is left for him, and ada sees what was decided.
        registry.withdraw(key(2).id(), None, id, after(5)).await.unwrap();
        assert!(seen(&registry, 2, None, after(6)).await.is_empty());
        assert_eq!(seen(&registry, 1, None, after(6)).await.len(), 1);
        // It ends.
        assert!(seen(&registry, 1, None, after(7 * DAY)).await.is_empty());
        registry.sweep(after(7 * DAY)).await.unwrap();
        assert_eq!(registry.store.proposals(&key(1).id()).await, Ok(Vec::new()));
    }
}

#[tokio::test]
async fn proposals_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let store = RedbStore::open(folder.path().join("names.redb")).unwrap();
        Registry::new(store, Admission::any(), Limits::default())
    };
    let (registry, word) = with_users(open()).await;
    let bytes = of_bob(&word, START).sign(&key(3)).unwrap();
    registry.propose(key(3).id(), &bytes, START).await.unwrap();
    let refusal = decision(ProposalId::of(&bytes), false).sign(&key(1)).unwrap();
    registry.decide(key(1).id(), &refusal, START).await.unwrap();
    drop(registry);
    let all = seen(&open(), 2, None, after(1)).await;
    assert_eq!(all[0].decided.as_ref().unwrap().bytes, refusal);
}

#[tokio::test]
async fn who_was_refused_does_not_ask_again_before_it_ends_and_who_was_accepted_may() {
    for (_folder, registry, word) in each().await {
        let first = of_bob(&word, START).sign(&key(3)).unwrap();
        let again = of_bob(&word, after(1)).sign(&key(3)).unwrap();
        let id = ProposalId::of(&first);
        registry.propose(key(3).id(), &first, START).await.unwrap();
        let asked = Err(NamesError::AskedAlready(name(ADA)));
        assert_eq!(registry.propose(key(3).id(), &again, after(1)).await, asked);
        let refusal = decision(id, false).sign(&key(1)).unwrap();
        registry.decide(key(1).id(), &refusal, after(2)).await.unwrap();
        assert_eq!(registry.propose(key(3).id(), &again, after(3)).await, asked);
        // Taking it back does not make room for another one.
        registry.withdraw(key(2).id(), None, id, after(4)).await.unwrap();
        assert_eq!(registry.propose(key(3).id(), &again, after(5)).await, asked);
        let later = of_bob(&word, after(7 * DAY)).sign(&key(3)).unwrap();
        let until = registry.propose(key(3).id(), &later, after(7 * DAY)).await;
        assert_eq!(until, Ok(after(14 * DAY)));
        let accepted = decision(ProposalId::of(&later), true).sign(&key(1)).unwrap();
        registry.decide(key(1).id(), &accepted, after(7 * DAY)).await.unwrap();
        let more = of_bob(&word, after(8 * DAY)).sign(&key(3)).unwrap();
        assert_eq!(registry.propose(key(3).id(), &more, after(8 * DAY)).await, Ok(after(15 * DAY)));
    }
}

#[tokio::test]
async fn two_users_may_ask_each_other_at_once() {
    for (_folder, registry, word) in each().await {
        let one = of_bob(&word, START).sign(&key(3)).unwrap();
        let back = Proposal {
            wished: Wished::Friends { from: name(ADA) },
            to: name(BOB),
            owner: key(2).id(),
            by: key(1).id(),
            word: None,
            ..of_bob(&word, START)
        };
        let back = back.sign(&key(1)).unwrap();
        registry.propose(key(3).id(), &one, START).await.unwrap();
        registry.propose(key(1).id(), &back, START).await.unwrap();
        for peer in [1, 2] {
            assert_eq!(seen(&registry, peer, None, after(1)).await.len(), 2, "{peer}");
        }
    }
}

async fn propose_by(
    registry: &Registry,
    proposal: &Proposal,
    by: u8,
    now: UnixTime,
) -> Result<UnixTime, NamesError> {
    registry.propose(key(by).id(), &proposal.sign(&key(by)).unwrap(), now).await
}

#[tokio::test]
async fn forgers_strangers_and_those_whose_word_was_taken_back_propose_and_decide_nothing() {
    for (_folder, registry, word) in each().await {
        // In the name of bob, by a stranger who says to be bob, and with a word of the wrong user's.
        let stranger = Proposal { by: key(9).id(), word: None, ..of_bob(&word, START) };
        let unknown = Err(NamesError::UserUnknown(name(BOB)));
        assert_eq!(propose_by(&registry, &stranger, 9, START).await, unknown);
        // As with a name that nobody has: strangers are not told which names there are.
        let wished = Wished::Friends { from: name("x@example.org") };
        let stranger = Proposal { wished, by: key(9).id(), word: None, ..of_bob(&word, START) };
        let unknown = Err(NamesError::UserUnknown(name("x@example.org")));
        assert_eq!(propose_by(&registry, &stranger, 9, START).await, unknown);
        let strangers = delegation(&key(9), "phone.bob@example.org", &key(3), START);
        let refused = NamesError::NotTheUsers { name: strangers.name().clone(), user: name(BOB) };
        assert_eq!(propose_by(&registry, &of_bob(&strangers, START), 3, START).await, Err(refused));
        // To somebody who does not exist, and to another key than ada's.
        let nobody = Proposal { to: name("nobody@example.org"), ..of_bob(&word, START) };
        let unknown = NamesError::NotFound(name("nobody@example.org"));
        assert_eq!(propose_by(&registry, &nobody, 3, START).await, Err(unknown));
        let other = Proposal { owner: key(9).id(), ..of_bob(&word, START) };
        assert_eq!(propose_by(&registry, &other, 3, START).await, Err(NamesError::NotFound(name(ADA))));
        // A machine that was given a service's name alone is none of bob's devices.
        let service = delegation(&key(2), "web.phone.bob@example.org", &key(5), START).encode();
        let heard = registry.proposals(key(5).id(), Some(&service), START).await;
        assert!(matches!(heard, Err(NamesError::NotTheUsers { .. })), "{heard:?}");
        // Too late, and from the future.
        let times = Err(NamesError::BadProposal(ProposalError::Times));
        assert_eq!(propose_by(&registry, &of_bob(&word, START), 3, after(7 * DAY)).await, times);
        assert_eq!(propose_by(&registry, &of_bob(&word, after(600)), 3, START).await, times);
        // Bob's phone was lost.
        assert!(propose_by(&registry, &of_bob(&word, START), 3, START).await.is_ok());
        let phone = "phone.bob@example.org";
        registry.take(&delegated(&key(3), phone, 1, &word), after(9)).await.unwrap();
        registry.take(&revocation(&key(2), phone, 2), after(10)).await.unwrap();
        let heard = registry.proposals(key(3).id(), Some(&word.encode()), after(11)).await;
        assert_eq!(heard, Err(NamesError::Revoked(name(phone))));
        let id = ProposalId::of(&of_bob(&word, START).sign(&key(3)).unwrap());
        let taken = registry.withdraw(key(3).id(), Some(&word.encode()), id, after(11)).await;
        assert_eq!(taken, Err(NamesError::Revoked(name(phone))));
        // A stranger cannot decide for ada, and bob cannot for himself.
        for by in [9, 2] {
            let by_other = Decision { by: key(by).id(), ..decision(id, true) }.sign(&key(by)).unwrap();
            let decided = registry.decide(key(by).id(), &by_other, after(12)).await;
            assert_eq!(decided, Err(NamesError::NoProposal), "{by}");
        }
        let forged = decision(id, true).sign(&key(1)).unwrap();
        let by_other = registry.decide(key(9).id(), &forged, after(12)).await;
        assert_eq!(by_other, Err(NamesError::NotYours(key(1).id())));
    }
}

/// A user of many.
fn user(number: usize) -> (SecretKey, String) {
    let mut seed = [200; 32];
    seed[..8].copy_from_slice(&(number as u64).to_be_bytes());
    (SecretKey::from_bytes(&seed), format!("user{number}@example.org"))
}

/// One of them asks a user to be a friend.
async fn ask(registry: &Registry, from: usize, to: &str, owner: EndpointId) -> Result<UnixTime, NamesError> {
    let (key, text) = user(from);
    let wished = Wished::Friends { from: name(&text) };
    let (to, by, expires) = (name(to), key.id(), after(DAY));
    let proposal = Proposal { wished, to, owner, by, made: START, expires, word: None };
    registry.propose(key.id(), &proposal.sign(&key).unwrap(), START).await
}

/// A machine asks ada to be her device.
async fn ask_to_be_a_device(registry: &Registry, seed: u8) -> (ProposalId, Result<UnixTime, NamesError>) {
    let new = key(seed);
    let wished = Wished::Device { name: name("new.ada@example.org") };
    let (owner, by, expires) = (key(1).id(), new.id(), after(600));
    let proposal = Proposal { wished, to: name(ADA), owner, by, made: START, expires, word: None };
    let bytes = proposal.sign(&new).unwrap();
    (ProposalId::of(&bytes), registry.propose(new.id(), &bytes, START).await)
}

#[tokio::test]
async fn nobody_is_asked_without_end_and_nobody_asks_without_end() {
    for (_folder, registry, _) in each().await {
        for number in 0..=MAX_ASKED.max(MAX_MADE) + 1 {
            let (key, text) = user(number);
            registry.take(&record(&key, &text, 1), START).await.unwrap();
        }
        for number in 0..MAX_ASKED {
            ask(&registry, number, ADA, key(1).id()).await.unwrap();
        }
        let full = Err(NamesError::TooManyProposals(name(ADA)));
        assert_eq!(ask(&registry, MAX_ASKED, ADA, key(1).id()).await, full);
        // One user asks many: the first has asked ada already.
        for number in 1..MAX_MADE {
            let (key, text) = user(number);
            ask(&registry, 0, &text, key.id()).await.unwrap();
        }
        let (last, text) = user(MAX_MADE);
        let full = Err(NamesError::TooManyProposals(name(&text)));
        assert_eq!(ask(&registry, 0, &text, last.id()).await, full);
        // New devices have places of their own.
        let (mut seed, full) = (100, Err(NamesError::TooManyProposals(name(ADA))));
        // What was refused leaves room for others, but not without end.
        for round in 0..3 {
            let mut asked = Vec::new();
            for _ in 0..MAX_NEW_DEVICES {
                seed += 1;
                asked.push(ask_to_be_a_device(&registry, seed).await);
            }
            seed += 1;
            assert_eq!(ask_to_be_a_device(&registry, seed).await.1, full, "{round}");
            for (id, asked) in asked {
                assert_eq!(asked.is_ok(), round < 2, "{round}: {asked:?}");
                if asked.is_ok() {
                    let refusal = decision(id, false).sign(&key(1)).unwrap();
                    registry.decide(key(1).id(), &refusal, START).await.unwrap();
                }
            }
        }
    }
}

#[tokio::test]
async fn a_new_device_hears_what_it_was_given() {
    for (_folder, registry, _) in each().await {
        let new = key(6);
        let wished = Wished::Device { name: name("new.ada@example.org") };
        let (owner, by, expires) = (key(1).id(), new.id(), after(600));
        let proposal = Proposal { wished, to: name(ADA), owner, by, made: START, expires, word: None };
        let bytes = proposal.sign(&new).unwrap();
        let id = ProposalId::of(&bytes);
        registry.propose(new.id(), &bytes, START).await.unwrap();
        let given = delegation(&key(1), "new.ada@example.org", &new, START);
        // For another key it is refused.
        let wrong = delegation(&key(1), "new.ada@example.org", &key(7), START);
        let wrong = Decision { given: Some(wrong), ..decision(id, true) }.sign(&key(1)).unwrap();
        let refused = Err(NamesError::BadProposal(ProposalError::Malformed));
        assert_eq!(registry.decide(key(1).id(), &wrong, START).await, refused);
        let right = Decision { given: Some(given), ..decision(id, true) }.sign(&key(1)).unwrap();
        registry.decide(key(1).id(), &right, START).await.unwrap();
        assert_eq!(seen(&registry, 6, None, after(1)).await[0].decided.as_ref().unwrap().bytes, right);
    }
}

/// Clocks differ by some minutes, and no more counts as that.
#[tokio::test]
async fn a_device_whose_word_is_of_the_future_has_no_say() {
    let (registry, _) = with_users(registry()).await;
    let asks = async |issued| {
        let word = delegation(&key(2), "phone.bob@example.org", &key(3), issued);
        registry.proposals(key(3).id(), Some(&word.encode()), START).await.map(|_| ())
    };
    assert_eq!(asks(after(300)).await, Ok(()));
    let early = Err(NamesError::DelegationTooEarly(name("phone.bob@example.org")));
    assert_eq!(asks(after(301)).await, early);
}
