// Package archive is the format in which weir keeps backups, and the places
// where it keeps them. It knows nothing of database protocols: packages backup
// and restore fill and empty it with text.
//
// A repository is a place, a directory or a prefix in an S3 bucket, that holds
// many backups. A backup is a directory of ordinary files:
//
//	20261121T163528Z-shop/
//	    globals.sql.zst
//	    db/shop/schema/pre-data.sql.zst
//	    db/shop/data/public.orders/0001.copy.zst
//	    db/shop/data/public.orders/0002.copy.zst
//	    SHA256SUMS
//	    manifest.json                          written last
//
// Without weir, `zstd -d` and psql restore it (docs/archive-format.md). The
// manifest is written last and atomically, so that its presence is the proof
// that the backup is whole: no manifest, no backup. While a backup runs, a
// journal says which chunks are complete, so that a run that was killed can be
// resumed.
//
// Every chunk goes through a pipeline of fixed size, whatever the size of the
// data is:
//
//	caller -> [buffers] -> hash, compress -> [buffers] -> encrypt, hash -> storage
//
// A slow stage holds back those before it, so that memory is bounded by the
// number of chunks in flight and nothing else. Two hashes are kept, of the
// stored and of the plain bytes: the first is verified without any key.
//
// The same archive is also written as one tar stream ([CreateStream]), with the
// manifest as its last entry, and read back from it.
package archive
