package archive

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"

	"github.com/cespare/xxhash/v2"
)

// A PlainSum is the hash of a chunk's plain bytes, to be compared with that of other
// bytes. The stored bytes, from which the plain ones follow, have a SHA-256; this hash
// finds an encoder or a memory that has failed, and shows whether rows that are read
// again are the same. XXH64 costs a tenth of a SHA-256, and a zstd frame has it anyhow.
type PlainSum struct {
	hash hash.Hash
	want string
	name string
}

// PlainSum returns the sum of a chunk, nil where it keeps none: those of encrypted
// backups do not, and archives of earlier versions have a SHA-256.
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

// Same reports whether all that was written are the bytes of the chunk.
func (p *PlainSum) Same() bool { return p.got() == p.want }

func (p *PlainSum) got() string { return hex.EncodeToString(p.hash.Sum(nil)) }

// plainXXH64 is a sum as the manifest has it.
func plainXXH64(sum uint64) string { return fmt.Sprintf("%016x", sum) }

// summed are encoders that know the XXH64 of what they took.
type summed interface{ Sum64() uint64 }
