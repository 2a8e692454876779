package archive

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"

	"github.com/cespare/xxhash/v2"
)

// A PlainSum is the hash of a chunk's plain bytes, for comparison with other bytes. The stored
// bytes have a SHA-256; this hash detects errors of an encoder or of memory, and shows whether
// rows that are read again are the same. XXH64 costs a tenth of a SHA-256, and zstd computes it
// anyway.
type PlainSum struct {
	hash hash.Hash
	want string
	name string
}

// PlainSum returns the sum of a chunk, or nil if it has none: chunks of encrypted backups have
// none. Those of archives of earlier versions have a SHA-256.
func (c *Chunk) PlainSum() *PlainSum {
	switch {
	case c.PlainXXH64 != "":
		return &PlainSum{xxhash.New(), c.PlainXXH64, "XXH64"}
	case c.PlainSHA256 != "":
		return &PlainSum{sha256.New(), c.PlainSHA256, "SHA-256"}
	}
	return nil
}

// Write adds bytes. It never fails.
func (p *PlainSum) Write(b []byte) (int, error) { return p.hash.Write(b) }

// Same reports whether the bytes written are those of the chunk.
func (p *PlainSum) Same() bool { return p.got() == p.want }

func (p *PlainSum) got() string { return hex.EncodeToString(p.hash.Sum(nil)) }

// plainXXH64 formats a sum as in the manifest.
func plainXXH64(sum uint64) string { return fmt.Sprintf("%016x", sum) }

// summed is implemented by encoders that compute the XXH64 of their input.
type summed interface{ Sum64() uint64 }
