//! Random histories: messages that arrive at once fare as those do beside which another is here in part.

use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::frame::Place;
use crate::varint::Reader;

const WINDOW: u64 = 1 << 20;
/// A flow of which a message is here in part, always.
const ASIDE: u64 = 9;

#[derive(Debug, Clone)]
enum Step {
    /// So many messages before the highest number of the flow so far, or behind it.
    Arrives {
        flow: u64,
        back: i64,
        size: usize,
        split: bool,
        group: bool,
    },
    Skipped {
        flow: u64,
        back: i64,
        size: u64,
    },
    Take(usize),
    Again,
}

fn step() -> impl Strategy<Value = Step> {
    let back = || prop_oneof![200 => -2i64..6, 1 => -40_000i64..-30_000];
    let size = select(&[0usize, 1, 30, 900][..]);
    prop_oneof![
        8 => (0u64..4, back(), size, prop::bool::weighted(0.1), prop::bool::weighted(0.1)).prop_map(
            |(flow, back, size, split, group)| Step::Arrives { flow, back, size, split, group }),
        1 => (0u64..4, back(), 0u64..900)
            .prop_map(|(flow, back, size)| Step::Skipped { flow, back, size }),
        2 => (0usize..6).prop_map(Step::Take),
        1 => Just(Step::Again),
    ]
}

struct World {
    receiver: Receiver,
    events: Events,
    highest: [u64; 4],
    /// The peer broke the protocol.
    over: bool,
}

impl World {
    fn new(beside: bool) -> Self {
        let (mut receiver, mut events) = (Receiver::new(WINDOW), Events::default());
        let class = Class::RELIABLE;
        let header = MessageHeader { flow: ASIDE, number: 0, class, tag: None, place: None };
        let size = if beside { 2 } else { 1 };
        receiver.piece(header, size, 0, b"a", &mut events).unwrap();
        assert_eq!(receiver.take().is_none(), beside);
        Self { receiver, events, highest: [0; 4], over: false }
    }

    fn header(&mut self, flow: u64, back: i64, group: bool) -> MessageHeader {
        let highest = &mut self.highest[flow as usize];
        let number = highest.saturating_add_signed(-back);
        *highest = (*highest).max(number.min(*highest + 2)) + u64::from(back < 0);
        let class = Class::ALL[flow as usize];
        let place = Place { group: 1, epoch: number / 2, index: number % 2 };
        MessageHeader { flow, number, class, tag: None, place: (group && class.sequenced).then_some(place) }
    }

    fn take(&mut self, step: &Step) -> String {
        let result = match *step {
            Step::Arrives { flow, back, size, split, group } => {
                let (header, data) = (self.header(flow, back, group), vec![back as u8; size]);
                let cut = if split { size / 2 } else { 0 };
                let mut put = |from: usize, to: usize| {
                    let (size, piece) = (size as u64, &data[from..to]);
                    self.receiver.piece(header, size, from as u64, piece, &mut self.events)
                };
                let first = if cut > 0 { put(0, cut) } else { Ok(()) };
                first.and_then(|()| put(cut, size))
            }
            Step::Skipped { flow, back, size } => {
                let header = self.header(flow, back, false);
                self.receiver.skip(Skip { header, size }, &mut self.events)
            }
            Step::Take(count) => {
                return (0..count).map(|_| format!("{:?}", self.receiver.take())).collect();
            }
            Step::Again => {
                let mut bytes = Vec::new();
                self.receiver.write_down(&mut bytes);
                let mut reader = Reader::new(&bytes);
                self.receiver = Receiver::read_back(&mut reader, WINDOW, false, &mut self.events).unwrap();
                Ok(())
            }
        };
        self.over = result.is_err();
        format!("{result:?}")
    }

    /// What there is to see, but for the message that is here in part or was.
    fn seen(&self) -> String {
        let Receiver { held, counts, .. } = &self.receiver;
        let Counts { received, discarded, duplicates } = *counts;
        let whole = |whole: &Whole| whole.data.len() as u64;
        let waiting = self.receiver.orders().flat_map(|(_, order)| order.waiting());
        let waiting: u64 = waiting.filter_map(|(_, _, item)| item.map(whole)).sum();
        let partial: u64 = self.receiver.partial.values().map(Partial::held).sum();
        assert_eq!(*held, waiting + partial + self.receiver.arrived.iter().map(whole).sum::<u64>());
        let aside = self.receiver.partial.contains_key(&(ASIDE, 0));
        let (here, whole) = (u64::from(aside), u64::from(!aside));
        let len = self.receiver.len() - usize::from(aside);
        format!("{} {} {discarded} {duplicates} {len}", held - here, received - whole)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn what_arrives_at_once_fares_as_what_arrives_in_pieces_and_can_be_written_down(
        steps in prop::collection::vec(step(), 1..150),
    ) {
        let mut worlds = [World::new(false), World::new(true)];
        for step in &steps {
            let [at_once, beside] = worlds.each_mut().map(|world| (world.take(step), world.seen()));
            prop_assert_eq!(at_once, beside, "{:?}", step);
            if worlds[0].over {
                break;
            }
        }
    }
}
