// Package archive defines the format of weir's backups and the places where they are stored. It
// knows nothing of database protocols: packages backup and restore write and read the content.
//
// A repository is a place, either a directory or a prefix in an S3 bucket, that holds many
// backups. A backup is a directory of ordinary files:
//
//	20261121T163528Z-shop/
//	    globals.sql.zst
//	    db/shop/schema/pre-data.sql.zst
//	    db/shop/data/public.orders/0001.copy.zst
//	    db/shop/data/public.orders/0002.copy.zst
//	    SHA256SUMS
//	    manifest.json                          written last
//
// Without weir, `zstd -d` and psql restore it (docs/archive-format.md). The manifest is written
// last and atomically: a backup is complete if and only if it has one. While a backup runs, a
// journal lists the chunks that are complete, so that an interrupted backup can be resumed.
//
// Every chunk goes through a pipeline of fixed size, whatever the size of the data:
//
//	caller -> [buffers] -> hash, compress -> [buffers] -> encrypt, hash -> storage
//
// A slow stage holds back the stages before it, so memory use depends only on the number of
// chunks in flight. The stored and the plain bytes each have a hash: the first can be verified
// without a key.
//
// The same archive can be written as one tar stream ([CreateStream]), with the manifest as its
// last entry, and read back from it.
package archive
