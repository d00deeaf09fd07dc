//! The file: its tables, the shape of an entry, opening and refusing. It never repairs by throwing away, and what it refuses it has not changed (`trial`).
//!
//! An entry is a CRC-32 of the key and of all that follows, its revision, its lease (0: none), its value. redb checks its pages itself; the CRC
//! stands for what neither redb nor we may take on trust: bytes that changed below a page that still adds up.

use super::super::{Entry, LeaseId, Revision, StoreError};
use super::trial::Trial;
use redb::{Builder, Database, DatabaseError, ReadTransaction, ReadableDatabase, StorageError};
use redb::{TableDefinition, TableError};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Version of what this file describes.
pub const FORMAT: u64 = 1;

/// Names: `format`, `revision`, `lease` (the last one granted).
pub const HEADER: TableDefinition<'_, &str, u64> = TableDefinition::new("header");
/// Keys and entries.
pub const ENTRIES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("entries");
/// Leases and their times, milliseconds.
pub const LEASES: TableDefinition<'_, i64, u64> = TableDefinition::new("leases");

/// redb's cache, bytes. Reads that matter are answered from the directory's own index.
const CACHE: usize = 32 * 1024 * 1024;

const FIXED: usize = 4 + 8 + 8;

/// Opens or makes it. Nothing is written to a file that is there until [`Trial::accept`].
pub fn open(path: &Path) -> Result<(Database, Trial), StoreError> {
    match std::fs::metadata(path) {
        Ok(metadata) if !metadata.is_file() => {
            return Err(StoreError::Invalid(format!(
                "the store `{}` is not a file: name one, or a path where nothing is yet and one can be made",
                path.display()
            )));
        }
        Ok(metadata) if metadata.len() == 0 => return Err(refused(path, "it is empty")),
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => make(path)?,
        Err(error) => {
            return Err(StoreError::Invalid(format!("the store `{}` cannot be read: {error}", path.display())));
        }
    }
    // Damaged bytes may make redb panic where it trusts its own file.
    let opened = catch_unwind(AssertUnwindSafe(|| {
        let trial = Trial::of(path)?;
        let mut builder = Builder::new();
        builder.set_cache_size(CACHE).set_check_integrity_on_open(true);
        Ok((builder.create_with_backend(trial.clone())?, trial))
    }));
    let (database, trial) = match opened {
        Ok(Ok(opened)) => opened,
        Ok(Err(DatabaseError::DatabaseAlreadyOpen | DatabaseError::LockProtocolMismatch)) => {
            return Err(StoreError::Invalid(format!(
                "the store `{}` is open in another process: end that `sfab control`, or use another file (one replica has one file; \
                 several replicas share an etcd)",
                path.display()
            )));
        }
        Ok(Err(DatabaseError::Storage(StorageError::Io(error))))
            if error.kind() == std::io::ErrorKind::PermissionDenied =>
        {
            return Err(StoreError::Invalid(format!("the store `{}` cannot be opened: {error}", path.display())));
        }
        Ok(Err(DatabaseError::UpgradeRequired(version))) => {
            return Err(refused(path, format!("its file format is {version}, older than this program reads")));
        }
        Ok(Err(error)) => return Err(refused(path, error)),
        Err(_) => return Err(refused(path, "its pages do not fit together")),
    };
    match format(&database) {
        Ok(FORMAT) => Ok((database, trial)),
        Ok(other) => Err(refused(
            path,
            format!(
                "it was written in format {other}, and this program reads format {FORMAT}: use the version that wrote it"
            ),
        )),
        Err(error) => Err(refused(path, error)),
    }
}

/// Makes it beside its place and moves it there whole, so that a crash leaves either nothing or a store.
fn make(path: &Path) -> Result<(), StoreError> {
    let unfinished = path.with_extension("unfinished");
    let made = (|| -> Result<(), redb::Error> {
        let _ = std::fs::remove_file(&unfinished);
        let database = Builder::new().create(&unfinished)?;
        let writing = database.begin_write()?;
        {
            let mut header = writing.open_table(HEADER)?;
            header.insert("format", FORMAT)?;
            header.insert("revision", 1)?;
            writing.open_table(ENTRIES)?;
            writing.open_table(LEASES)?;
        }
        writing.commit()?;
        database.close()?;
        std::fs::rename(&unfinished, path)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::File::open(folder)?.sync_all()?;
        Ok(())
    })();
    made.map_err(|error| StoreError::Invalid(format!("the store `{}` cannot be made: {error}", path.display())))
}

/// A file that is not opened, and what to do.
pub fn refused(path: &Path, why: impl Display) -> StoreError {
    StoreError::Broken(format!(
        "`{path}`: {why}. It was left as it is. To go on without it, move it away (`mv {path} {path}.bad`): agents tell who is connected again \
         within a minute, and tenants and topology have to be configured again; or put a copy in its place",
        path = path.display()
    ))
}

/// A failure while the store is open.
pub fn broken(error: impl Display) -> StoreError {
    StoreError::Broken(format!("{error}. Nothing more is written; look at the disk, then start again"))
}

fn format(database: &Database) -> Result<u64, redb::Error> {
    let reading = database.begin_read()?;
    let header = match reading.open_table(HEADER) {
        Err(TableError::TableDoesNotExist(_)) => {
            return Err(StorageError::Corrupted("it is a redb file, but not one of ours".into()).into());
        }
        other => other?,
    };
    Ok(header.get("format")?.map_or(0, |format| format.value()))
}

/// An entry's bytes.
pub fn encode(key: &str, revision: Revision, lease: Option<LeaseId>, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(FIXED + value.len());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&revision.0.to_le_bytes());
    bytes.extend_from_slice(&lease.map_or(0, |lease| lease.0).to_le_bytes());
    bytes.extend_from_slice(value);
    let crc = checksum(key, &bytes[4..]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// An entry from its bytes.
pub fn decode(key: &str, bytes: &[u8]) -> Result<Entry, StoreError> {
    let damaged = || StoreError::Broken(format!("the entry `{key}` is damaged"));
    let (crc, rest) = bytes.split_first_chunk::<4>().ok_or_else(damaged)?;
    if checksum(key, rest) != u32::from_le_bytes(*crc) {
        return Err(damaged());
    }
    let (revision, rest) = rest.split_first_chunk::<8>().ok_or_else(damaged)?;
    let (lease, value) = rest.split_first_chunk::<8>().ok_or_else(damaged)?;
    let lease = i64::from_le_bytes(*lease);
    Ok(Entry {
        key: key.to_owned(),
        value: value.to_vec(),
        revision: Revision(u64::from_le_bytes(*revision)),
        lease: (lease != 0).then_some(LeaseId(lease)),
    })
}

fn checksum(key: &str, rest: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(key.as_bytes());
    hasher.update(rest);
    hasher.finalize()
}

/// Reads one.
pub fn get(reading: &ReadTransaction, key: &str) -> Result<Option<Entry>, StoreError> {
    let entries = reading.open_table(ENTRIES).map_err(broken)?;
    let found = entries.get(key).map_err(broken)?;
    found.map(|bytes| decode(key, bytes.value())).transpose()
}

/// Reads all with a prefix, and the store's revision.
pub fn list(reading: &ReadTransaction, prefix: &str) -> Result<(Vec<Entry>, Revision), StoreError> {
    let entries = reading.open_table(ENTRIES).map_err(broken)?;
    let header = reading.open_table(HEADER).map_err(broken)?;
    let revision = header.get("revision").map_err(broken)?.map_or(0, |revision| revision.value());
    let mut found = Vec::new();
    for pair in entries.range(prefix..).map_err(broken)? {
        let (key, bytes) = pair.map_err(broken)?;
        if !key.value().starts_with(prefix) {
            break;
        }
        found.push(decode(key.value(), bytes.value())?);
    }
    Ok((found, Revision(revision)))
}
