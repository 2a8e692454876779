package archive

import (
	"fmt"
	"time"
)

// Options say how a backup is written. The manifest records what a restore needs; only keys
// have to be given again.
type Options struct {
	// ID names the backup. Default: the time and the label, made unique.
	ID string

	// Label groups backups of one source; a database's name or "cluster", for example. Default:
	// "backup".
	Label string

	// Resume continues the unfinished backup ID: chunks that its journal lists
	// as complete need not be written again (see [Writer.Done]).
	Resume bool

	// Compression is how chunks are compressed. Default: zstd, level 1.
	Compression Compression

	// Encryption says for which keys chunks are encrypted. Default: not encrypted.
	Encryption EncryptionOptions

	// Parallel is how many chunks may be open at once: [Writer.Chunk] waits for one of them to
	// close. Default: 2.
	Parallel int

	// Inline compresses in the goroutine that writes a chunk instead of a separate one, which
	// saves passing buffers between goroutines. It is meant for at least as many parallel
	// chunks as processors; with fewer, processors would be idle. Default: false.
	Inline bool

	// BufferBytes and Buffers are the size and the number of the buffers of each open chunk;
	// the pool holds at most Parallel x Buffers of them. Default: 256 KiB and 8.
	BufferBytes int
	Buffers     int

	// Rate limits the bytes per second that go to the storage, over all chunks.
	// Default: 0, no limit.
	Rate int64

	// Weir is the version to write into the manifest. Default: "unknown".
	Weir string

	// Now returns the time. Default: time.Now.
	Now func() time.Time
}

// EncryptionOptions say for which keys a backup is encrypted. The zero value does not encrypt.
// Recipients and a passphrase may be given together: each decrypts it.
type EncryptionOptions struct {
	// Recipients are public keys in the form of age (age1...) or OpenSSH (ssh-ed25519,
	// ssh-rsa).
	Recipients []string

	// Passphrase, if not empty, also decrypts the backup.
	Passphrase string

	// HideNames also encrypts the manifest, and gives files opaque names.
	// docs/archive-format.md says what remains visible.
	HideNames bool

	// PassphraseWork is the logarithm of the passphrase's cost. Default: 18, about a second.
	// Tests lower it: the race detector makes it thirty times slower.
	PassphraseWork int
}

// Enabled reports whether chunks are encrypted.
func (e EncryptionOptions) Enabled() bool { return len(e.Recipients) > 0 || e.Passphrase != "" }

func (o Options) withDefaults() Options {
	if o.Label == "" {
		o.Label = "backup"
	}
	if o.Compression.Codec == "" {
		o.Compression.Codec = Zstd
	}
	if o.Parallel == 0 {
		o.Parallel = 2
	}
	if o.BufferBytes == 0 {
		o.BufferBytes = 256 << 10
	}
	if o.Buffers == 0 {
		o.Buffers = 8
	}
	if o.Weir == "" {
		o.Weir = "unknown"
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

func (o Options) validate() error {
	switch {
	case o.Parallel < 1:
		return fmt.Errorf("parallel chunks: %d, at least 1 is needed", o.Parallel)
	case o.BufferBytes < 4<<10:
		return fmt.Errorf("buffer size: %d bytes, at least 4 KiB are needed", o.BufferBytes)
	case o.Buffers < 4:
		return fmt.Errorf("buffers for each chunk: %d, at least 4 are needed", o.Buffers)
	case o.Rate < 0:
		return fmt.Errorf("rate limit: %d bytes/s is negative", o.Rate)
	case o.Resume && o.ID == "":
		return fmt.Errorf("resume: the id of the unfinished backup is needed")
	case o.Encryption.HideNames && !o.Encryption.Enabled():
		return fmt.Errorf("hide names: a recipient or a passphrase is needed")
	}
	if o.ID != "" {
		if err := checkID("id", o.ID); err != nil {
			return err
		}
	}
	if err := checkID("label", o.Label); err != nil {
		return err
	}
	return o.Compression.validate()
}
