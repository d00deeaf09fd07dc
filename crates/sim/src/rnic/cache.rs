//! Caches in the NIC's SRAM, simulated entry by entry. [`Cache`] holds contexts and translations: sets of ways, the least recently used of a set goes.
//! [`Residents`] holds what is in flight: it enters once, leaves once, and may be pushed out between. Neither knows what an entry costs.

use std::collections::{HashMap, VecDeque};

/// Ways of a set, or fewer if there are fewer entries.
const WAYS: usize = 8;

/// A set-associative cache with least-recently-used replacement in each set.
#[derive(Clone, Debug)]
pub struct Cache {
    /// Keys by set; within a set the most recently used stands first. `EMPTY` is no key.
    keys: Vec<u64>,
    ways: usize,
    sets: u64,
    hits: u64,
    misses: u64,
}

const EMPTY: u64 = u64::MAX;

impl Cache {
    /// An empty cache of `entries`, rounded down to whole sets of eight ways; at least one entry.
    pub fn new(entries: u64) -> Self {
        let ways = WAYS.min(entries.max(1) as usize);
        let sets = (entries / ways as u64).max(1);
        Self { keys: vec![EMPTY; ways * sets as usize], ways, sets, hits: 0, misses: 0 }
    }

    /// The same, for keys below `keys`: no larger than they need, which changes no result.
    pub fn for_keys(entries: u64, keys: u64) -> Self {
        Self::new(entries.min(keys.next_multiple_of(WAYS as u64)))
    }

    /// Uses `key`: true if it was there. If not, it takes the place of the least recently used of its set. Keys that follow each other go to
    /// different sets, as contexts by number and pages by address do.
    pub fn touch(&mut self, key: u64) -> bool {
        let from = (key % self.sets) as usize * self.ways;
        let set = &mut self.keys[from..from + self.ways];
        let at = set.iter().position(|held| *held == key);
        set[..=at.unwrap_or(self.ways - 1)].rotate_right(1);
        set[0] = key;
        match at {
            Some(_) => self.hits += 1,
            None => self.misses += 1,
        }
        at.is_some()
    }

    /// Forgets the counts, not the entries: what came before was warming up.
    pub fn warm(&mut self) {
        (self.hits, self.misses) = (0, 0);
    }

    /// Misses of a thousand thousand uses since it was warm; 0 if there were none.
    pub fn miss_ppm(&self) -> u64 {
        (self.misses * 1_000_000).checked_div(self.hits + self.misses).unwrap_or(0)
    }

    /// Entries it can hold.
    pub fn entries(&self) -> u64 {
        self.keys.len() as u64
    }
}

/// Who goes when there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eviction {
    /// Who came first.
    Oldest,
    /// Who comes: it is not kept at all.
    Newcomer,
}

/// Things in flight, of which only so many have room.
#[derive(Clone, Debug)]
pub struct Residents {
    capacity: usize,
    eviction: Eviction,
    slots: Vec<u64>,
    places: HashMap<u64, usize>,
    order: VecDeque<u64>,
    left: u64,
    missed: u64,
}

impl Residents {
    /// Room for `capacity`, at least one.
    pub fn new(capacity: u64, eviction: Eviction) -> Self {
        let capacity = capacity.max(1) as usize;
        let (slots, places, order) = (Vec::new(), HashMap::new(), VecDeque::new());
        Self { capacity, eviction, slots, places, order, left: 0, missed: 0 }
    }

    /// `id`, which was never here, enters; if there is no room, somebody goes.
    pub fn enter(&mut self, id: u64) {
        if self.slots.len() >= self.capacity {
            if self.eviction == Eviction::Newcomer {
                return;
            }
            let victim = loop {
                let first = self.order.pop_front().expect("who is here is in the order");
                if self.places.contains_key(&first) {
                    break first;
                }
            };
            self.remove(victim);
        }
        self.places.insert(id, self.slots.len());
        self.slots.push(id);
        if self.eviction == Eviction::Oldest {
            self.order.push_back(id);
        }
    }

    /// `id` leaves: true if it was still here.
    pub fn leave(&mut self, id: u64) -> bool {
        self.left += 1;
        let here = self.remove(id);
        self.missed += u64::from(!here);
        while self.order.front().is_some_and(|first| !self.places.contains_key(first)) {
            self.order.pop_front();
        }
        here
    }

    fn remove(&mut self, id: u64) -> bool {
        let Some(at) = self.places.remove(&id) else { return false };
        self.slots.swap_remove(at);
        if let Some(moved) = self.slots.get(at) {
            self.places.insert(*moved, at);
        }
        true
    }

    /// Forgets the counts.
    pub fn warm(&mut self) {
        (self.left, self.missed) = (0, 0);
    }

    /// Of a thousand thousand that left, how many were no longer here.
    pub fn miss_ppm(&self) -> u64 {
        (self.missed * 1_000_000).checked_div(self.left).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uniform(entries: u64, keys: u64) -> u64 {
        let (mut cache, mut random) = (Cache::new(entries), crate::random::Random::new(1, 0));
        for turn in 0..40_000 {
            if turn == 20_000 {
                cache.warm();
            }
            cache.touch(random.below(keys));
        }
        cache.miss_ppm()
    }

    #[test]
    fn what_fits_is_never_missed_and_one_more_set_full_is() {
        assert_eq!(uniform(80, 80), 0);
        assert!(uniform(80, 90) > 0);
    }

    #[test]
    fn uniform_use_misses_what_does_not_fit() {
        for (keys, expected) in [(160, 500_000), (320, 750_000)] {
            let got = uniform(80, keys);
            assert!(got.abs_diff(expected) < 15_000, "{keys} keys: {got}");
        }
    }

    #[test]
    fn the_least_recently_used_goes() {
        let mut cache = Cache::new(8);
        (0..8).for_each(|key| assert!(!cache.touch(key)));
        assert!(cache.touch(0));
        assert!(!cache.touch(8));
        assert!(cache.touch(0), "0 was used after 1");
        assert!(!cache.touch(1), "1 was the oldest");
    }

    #[test]
    fn the_oldest_goes_before_its_turn_once_too_many_are_in_flight() {
        for (flight, all) in [(10u64, false), (11, true)] {
            let mut residents = Residents::new(10, Eviction::Oldest);
            for id in 0..1000 {
                if id >= flight {
                    residents.leave(id - flight);
                }
                residents.enter(id);
            }
            assert_eq!(residents.miss_ppm(), if all { 1_000_000 } else { 0 }, "{flight} in flight");
        }
    }

    #[test]
    fn newcomers_find_room_in_proportion() {
        for (flight, expected) in [(1000u64, 0), (2000, 500_000), (4000, 750_000)] {
            let mut residents = Residents::new(1000, Eviction::Newcomer);
            for id in 0..40_000u64 {
                if id >= flight {
                    residents.leave(id - flight);
                }
                residents.enter(id);
            }
            assert!(residents.miss_ppm().abs_diff(expected) < 20_000, "{flight}: {}", residents.miss_ppm());
        }
    }
}
