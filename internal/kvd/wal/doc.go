// Package wal keeps what one replica must not forget: its log, its votes and
// its snapshots, in one directory. It knows entries by term and index; all
// other records are opaque to it.
//
//	identity                                  whose directory this is, written once
//	peers, acked, group                       what is known of other replicas, and to whom they belong
//	LOCK                                      held while a process uses the directory
//	00000000000000000007.wal                  segments of the log, in order; the last one is written
//	spare-00000000000000000004                a segment that is free, to be written again
//	snapshot-00000000000000004711-…0005       the state after entry 4711, which is of term 5
//	snapshot-…-…-1048688.part                 a snapshot of so many bytes that is being received
//
// # Rounds
//
// [Log.Append] gathers records, [Log.Sync] writes all that was gathered as one
// round: one write that is flushed. A round is the unit of everything: of its
// checksum, of durability and of recovery. It comes back whole or not at all,
// so that a vote and the entries that were written with it are never torn
// apart.
//
//	segment  header(128) round round round … unused bytes (zeros, or rounds of a former life)
//	header   magic "weirwal\n" | version u32 | crc u32 | number u64 | log id 16 | nonce u64
//	         | size u64 | end of the previous segment u64 | its chain u32 | 0 u32
//	         | last index u64 | its term u64 | zeros
//	round    head crc u32 | body crc u32 | body length u32 | records u32 | number u64 | offset u64
//	         | body, padded with zeros to a multiple of 8
//	record   kind u8 | term uvarint | index uvarint | length uvarint | data
//
// All integers are little-endian, all checksums CRC-32C. A round's head can be
// verified alone: its checksum is seeded by the segment's header, which holds a
// nonce, and it names its own offset. A round's body continues the checksum of
// the round before it, beginning with the header, which in turn continues the
// previous segment. So no byte of a recycled file's former life verifies, and no
// round can be replaced, left out or moved.
//
// # Torn or corrupt
//
// A power failure in the middle of a write leaves any subset of that write's
// sectors. That is normal: what was being written had not been acknowledged.
// Damage to what was flushed earlier is another matter: a replica that forgets
// a vote or an entry that it acknowledged can undo what the cluster decided. The
// log tells both apart by this rule:
//
//   - A round is written only after the round before it was flushed. So a bad
//     round after which a head of a later round verifies, anywhere in the segment,
//     was flushed once and is corrupt now.
//   - A segment gets its name only when all rounds of the previous one and its own
//     header and first round are flushed, and its header says where the previous
//     one ends. So anything wrong in any but the last segment, or in the header or
//     first round of the last, is corruption. Then the previous one gets a seal: a
//     sealed segment without a next one is corruption, too.
//   - A segment is never shorter than its header says, which is its full size from the
//     beginning. So a file that was cut short is corrupt, whatever was in the rest.
//   - Anything else is the torn end of the last write. [Open] cuts it off, says so
//     in [Recovered], and at once writes a round of its own in its place, so that
//     nothing of it can come back later.
//
// One place is left where the two look alike: the very last round before a crash.
// A damaged end is cut off although it may have been flushed, but it is reported, because zeros
// follow each round: an end is zeros, nothing else is. [Log.Close] writes a last round after
// which no such place is left. Nor can the log tell what a file had beyond the size in its header,
// where it grows until the next segment is ready: if that is cut short later, it is reported as a
// damaged end. Corruption is an error, [CorruptError], and changes nothing in
// the directory.
//
// # Segments
//
// The first round of each segment is its carry: the caller repeats there every
// record, other than entries, that is still alive. So all records other than
// entries of older segments are void, and a segment whose entries a snapshot
// covers is free. It becomes a spare and is written again from its start:
// overwriting blocks that exist costs a flush about two thirds of what growing
// a file does, because the file system has nothing of its own to write.
package wal
