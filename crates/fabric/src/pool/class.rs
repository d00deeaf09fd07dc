//! Sizes of blocks: eight steps of 64 bytes, then four steps between powers of two, up to 1 MiB, so that at most a fifth of a block is wasted. Pure
//! arithmetic.

/// Smallest block, and the step of all: a cache line.
pub const LINE: usize = 64;
/// A page, the other alignment that can be asked for.
pub const PAGE: usize = 4096;
/// Largest block of a class; larger buffers are extents of their own.
pub const LARGEST: usize = 1 << 20;
/// Number of classes.
pub const CLASSES: usize = 8 + 4 * 11;

/// Class of a size; `None` for more than [`LARGEST`]. 0 bytes take the smallest.
#[inline]
pub fn class_of(bytes: usize) -> Option<usize> {
    if bytes <= 512 {
        return Some(bytes.saturating_sub(1) / LINE);
    }
    if bytes > LARGEST {
        return None;
    }
    // 2^power < bytes <= 2^(power + 1), in four steps.
    let power = (bytes - 1).ilog2() as usize;
    let step = (bytes - 1 - (1 << power)) >> (power - 2);
    Some(8 + 4 * (power - 9) + step)
}

/// Bytes of a class's blocks.
#[inline]
pub fn size_of(class: usize) -> usize {
    if class < 8 {
        return (class + 1) * LINE;
    }
    let (power, step) = ((class - 8) / 4 + 9, (class - 8) % 4);
    (1 << power) + (step + 1) * (1 << (power - 2))
}

/// The smallest class that holds `bytes` at multiples of a page.
pub fn page_class_of(bytes: usize) -> Option<usize> {
    (class_of(bytes)?..CLASSES).find(|&class| size_of(class).is_multiple_of(PAGE))
}

/// Blocks that a thread keeps in one magazine: 128 KiB of them, at least 2, at most 64.
pub fn magazine_of(class: usize) -> usize {
    ((128 << 10) / size_of(class)).clamp(2, 64)
}

/// Bytes that are cut into blocks at once.
pub fn slab_of(class: usize) -> usize {
    (size_of(class) * magazine_of(class) * 2).next_multiple_of(super::extent::GRAIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_holds_its_size_and_not_one_byte_more() {
        assert_eq!(size_of(CLASSES - 1), LARGEST);
        for class in 0..CLASSES {
            let size = size_of(class);
            assert!(size.is_multiple_of(LINE));
            assert_eq!(class_of(size), Some(class), "{size}");
            assert_eq!(class_of(size + 1), (class + 1 < CLASSES).then_some(class + 1), "{size} + 1");
            assert!(class == 0 || size_of(class - 1) < size);
            assert!(class < 8 || (size - size_of(class - 1)) * 5 <= size, "waste of {size}");
            assert!(slab_of(class) >= 2 * size);
        }
        assert_eq!(class_of(0), Some(0));
    }

    #[test]
    fn a_page_class_holds_pages() {
        for bytes in [1, 64, 4096, 4097, 5000, 9000, 100_000, LARGEST] {
            let size = size_of(page_class_of(bytes).unwrap());
            assert!(size >= bytes && size.is_multiple_of(PAGE));
        }
        assert_eq!(page_class_of(LARGEST + 1), None);
    }
}
