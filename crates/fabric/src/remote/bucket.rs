//! A hash table in its owner's memory that peers look up with one READ each: a key falls on one bucket, and the bucket carries a version and a checksum, so that one which was read
//! while the owner wrote it is noticed and read again. Peers only read.

use super::{Area, Home};
use crate::error::FabricError;
use serde::{Deserialize, Serialize};
use std::hash::Hasher;

/// Bytes of a bucket before its entries: version, checksum, entries used.
const HEAD: usize = 16;
/// How often a bucket is read before we say that it never holds still. An owner that lost its processor while it wrote needs milliseconds.
const TRIES: u32 = 1000;
/// Tries without a pause; the owner is usually done by then.
const EAGER_TRIES: u32 = 16;
/// Pause before each further try.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(1);

/// How a table's memory is laid out. Both sides must have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableShape {
    /// Buckets, at least 1. Room for twice the keys keeps full buckets rare.
    pub buckets: u64,
    /// Entries of a bucket, 1 to 65536: keys that may fall on one bucket. More make each READ longer.
    pub entries: u32,
    /// Bytes of a key, at least 1.
    pub key_bytes: u32,
    /// Bytes of a value.
    pub value_bytes: u32,
    /// A number that those who choose keys do not know, so that they cannot make all of them fall on one bucket.
    pub seed: u64,
}

impl TableShape {
    /// Bytes of a bucket: what one look-up reads. A multiple of 64.
    pub fn bucket_bytes(&self) -> u64 {
        let entry = u64::from(self.key_bytes) + u64::from(self.value_bytes);
        (HEAD as u64 + u64::from(self.entries) * entry).next_multiple_of(64)
    }

    /// Bytes of memory it wants.
    pub fn bytes(&self) -> u64 {
        self.buckets.saturating_mul(self.bucket_bytes())
    }

    /// The bucket of a key.
    pub fn bucket_of(&self, key: &[u8]) -> u64 {
        let mut hasher = siphasher::sip::SipHasher13::new_with_keys(self.seed, 0x7363_616c_6566_6162);
        hasher.write(key);
        hasher.finish() % self.buckets
    }

    fn check(&self, bytes: u64) -> Result<(), FabricError> {
        if self.buckets == 0
            || !(1..=65536).contains(&self.entries)
            || self.key_bytes == 0
            || self.bucket_bytes() > 1 << 30
        {
            return Err(FabricError::misuse(format!(
                "{self:?}: at least one bucket, one to 65536 entries, a byte of key, and buckets below 1 GiB"
            )));
        }
        if bytes < self.bytes() {
            return Err(FabricError::misuse(format!("the table wants {} bytes, there are {bytes}", self.bytes())));
        }
        Ok(())
    }

    fn check_key(&self, key: &[u8]) -> Result<(), FabricError> {
        if key.len() != self.key_bytes as usize {
            return Err(FabricError::misuse(format!(
                "a key of {} bytes: this table's have {}",
                key.len(),
                self.key_bytes
            )));
        }
        Ok(())
    }

    fn entry(&self, index: usize) -> std::ops::Range<usize> {
        let entry = (self.key_bytes + self.value_bytes) as usize;
        HEAD + index * entry..HEAD + (index + 1) * entry
    }

    /// Where an entry with this key begins, among those used.
    fn find(&self, bucket: &[u8], key: &[u8]) -> Option<usize> {
        (0..used(bucket).min(self.entries) as usize).find(|index| bucket[self.entry(*index)].starts_with(key))
    }
}

fn version(bucket: &[u8]) -> u64 {
    u64::from_le_bytes(bucket[..8].try_into().unwrap_or_default())
}

fn used(bucket: &[u8]) -> u32 {
    u32::from_le_bytes(bucket[12..16].try_into().unwrap_or_default())
}

/// Over everything but itself, and over which bucket it is.
fn checksum(index: u64, bucket: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&index.to_le_bytes());
    hasher.update(&bucket[..8]);
    hasher.update(&bucket[12..]);
    hasher.finalize()
}

fn is_whole(index: u64, bucket: &[u8]) -> bool {
    bucket[8..12] == checksum(index, bucket).to_le_bytes()
}

/// The owner's side: the only one that writes.
#[derive(Debug)]
pub struct TableOwner<H> {
    home: H,
    shape: TableShape,
}

impl<H: Home> TableOwner<H> {
    /// An empty table over memory that peers may read.
    pub fn new(home: H, shape: TableShape) -> Result<Self, FabricError> {
        shape.check(home.length() as u64)?;
        let mut table = Self { home, shape };
        let empty = vec![0; shape.bucket_bytes() as usize];
        for index in 0..shape.buckets {
            table.put_bucket(index, empty.clone())?;
        }
        Ok(table)
    }

    /// What peers must know to look something up.
    pub fn shape(&self) -> TableShape {
        self.shape
    }

    /// Puts a key with its value, in the place of its old value if it had one. False if its bucket is full: make a larger table.
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<bool, FabricError> {
        self.shape.check_key(key)?;
        if value.len() != self.shape.value_bytes as usize {
            return Err(FabricError::misuse(format!(
                "a value of {} bytes: this table's have {}",
                value.len(),
                self.shape.value_bytes
            )));
        }
        let (index, mut bucket) = self.bucket(key)?;
        let place = match self.shape.find(&bucket, key) {
            Some(place) => place,
            None if used(&bucket) < self.shape.entries => {
                let place = used(&bucket);
                bucket[12..16].copy_from_slice(&(place + 1).to_le_bytes());
                place as usize
            }
            None => return Ok(false),
        };
        let entry = &mut bucket[self.shape.entry(place)];
        entry[..key.len()].copy_from_slice(key);
        entry[key.len()..].copy_from_slice(value);
        self.put_bucket(index, bucket)?;
        Ok(true)
    }

    /// Takes a key out; false if it was not there.
    pub fn remove(&mut self, key: &[u8]) -> Result<bool, FabricError> {
        self.shape.check_key(key)?;
        let (index, mut bucket) = self.bucket(key)?;
        let Some(place) = self.shape.find(&bucket, key) else { return Ok(false) };
        let last = used(&bucket) as usize - 1;
        bucket.copy_within(self.shape.entry(last), self.shape.entry(place).start);
        bucket[self.shape.entry(last)].fill(0);
        bucket[12..16].copy_from_slice(&(last as u32).to_le_bytes());
        self.put_bucket(index, bucket)?;
        Ok(true)
    }

    fn bucket(&self, key: &[u8]) -> Result<(u64, Vec<u8>), FabricError> {
        let index = self.shape.bucket_of(key);
        let mut bucket = vec![0; self.shape.bucket_bytes() as usize];
        self.home.read((index * self.shape.bucket_bytes()) as usize, &mut bucket)?;
        if !is_whole(index, &bucket) {
            return Err(FabricError::peer(format!(
                "bucket {index} of our table was overwritten: only its owner may have the right to write it"
            )));
        }
        Ok((index, bucket))
    }

    fn put_bucket(&mut self, index: u64, mut bucket: Vec<u8>) -> Result<(), FabricError> {
        let next = version(&bucket).wrapping_add(1);
        bucket[..8].copy_from_slice(&next.to_le_bytes());
        let sum = checksum(index, &bucket).to_le_bytes();
        bucket[8..12].copy_from_slice(&sum);
        self.home.write((index * self.shape.bucket_bytes()) as usize, &bucket)
    }
}

/// A peer's side: looks up.
///
/// ```no_run
/// # use scalefabric_fabric::{endpoint::{Connection, Remote}, pool::Pool, remote::{Far, Table, TableShape}, FabricError};
/// # fn look(connection: &Connection, pool: &Pool, shape: TableShape) -> Result<(), FabricError> {
/// let area = Far::new(connection, Remote::Offered { id: 9, offset: 0 }, shape.bytes(), pool);
/// let table = Table::new(area, shape)?;
/// if let Some(value) = table.get(b"key with 16 byte")? {
///     println!("{} bytes", value.len());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Table<A> {
    area: A,
    shape: TableShape,
}

impl<A: Area> Table<A> {
    /// Over the memory of a [`TableOwner`] with this shape.
    pub fn new(area: A, shape: TableShape) -> Result<Self, FabricError> {
        shape.check(area.length())?;
        Ok(Self { area, shape })
    }

    /// The value of a key. One READ, and another for each time that the owner was just writing the bucket.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, FabricError> {
        self.shape.check_key(key)?;
        let index = self.shape.bucket_of(key);
        let mut bucket = vec![0; self.shape.bucket_bytes() as usize];
        for number in 0..TRIES {
            if number >= EAGER_TRIES {
                std::thread::sleep(PAUSE);
            }
            self.area.read(index * self.shape.bucket_bytes(), &mut bucket)?;
            if is_whole(index, &bucket) {
                let place = self.shape.find(&bucket, key);
                return Ok(place.map(|place| bucket[self.shape.entry(place)][key.len()..].to_vec()));
            }
        }
        Err(FabricError::peer(format!(
            "bucket {index} was never whole in {TRIES} READs: has its owner another shape, or died while it wrote?"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::stage::Stage;
    use std::collections::HashMap;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    const SHAPE: TableShape = TableShape { buckets: 8, entries: 4, key_bytes: 4, value_bytes: 12, seed: 77 };

    #[test]
    fn a_table_agrees_with_a_map() {
        let stage = Arc::new(Stage::new(SHAPE.bytes() as usize));
        let mut owner = TableOwner::new(stage.clone(), SHAPE).unwrap();
        let table = Table::new(stage, SHAPE).unwrap();
        let mut map = HashMap::new();
        let mut random = 12345_u32;
        let mut full = 0;
        for step in 0..2000_u32 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let key = (random >> 16 & 31).to_le_bytes();
            if random >> 28 < 4 {
                assert_eq!(owner.remove(&key).unwrap(), map.remove(&key).is_some());
            } else {
                let value = [step as u8; 12];
                if owner.insert(&key, &value).unwrap() {
                    map.insert(key, value);
                } else {
                    assert!(!map.contains_key(&key));
                    full += 1;
                }
            }
            for key in 0..32_u32 {
                let key = key.to_le_bytes();
                assert_eq!(table.get(&key).unwrap().as_deref(), map.get(&key).map(|value| &value[..]));
            }
        }
        assert!(full > 0, "no bucket was ever full");
    }

    #[test]
    fn a_reader_never_sees_half_a_value() {
        let stage = Arc::new(Stage::new(SHAPE.bytes() as usize));
        let mut owner = TableOwner::new(stage.clone(), SHAPE).unwrap();
        owner.insert(b"key1", &[0; 12]).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let table = Table::new(stage.clone(), SHAPE).unwrap();
                let mut looks = 0;
                while !over.load(Ordering::Relaxed) || looks == 0 {
                    let value = table.get(b"key1").unwrap().expect("it is always there");
                    assert!(value.iter().all(|byte| *byte == value[0]), "torn: {value:?}");
                    looks += 1;
                }
            });
            for step in 0..3000_u32 {
                owner.insert(b"key1", &[step as u8; 12]).unwrap();
            }
            over.store(true, Ordering::Relaxed);
            reader.join().unwrap();
        });
    }

    #[test]
    fn a_bucket_that_is_never_whole_is_told() {
        // Zeroed memory has no checksum.
        let stage = Arc::new(Stage::new(SHAPE.bytes() as usize));
        let table = Table::new(stage, SHAPE).unwrap();
        assert!(table.get(b"key1").unwrap_err().message.contains("never whole"));
        assert!(table.get(b"key").unwrap_err().message.contains("3 bytes"));
    }
}
