package archive

import (
	"fmt"
	"time"
)

// Options says how a backup is written. What a restore needs to know is in the
// manifest; nothing here needs to be repeated for reading but keys.
type Options struct {
	// ID names the backup. Default: the time and the label, made unique.
	ID string

	// Label groups backups of one source, such as a database's name or "cluster".
	// Default: "backup".
	Label string

	// Resume continues the unfinished backup ID: chunks that its journal lists
	// as complete need not be written again (see [Writer.Done]).
	Resume bool

	// Compression is how chunks are compressed. Default: zstd, level 1.
	Compression Compression

	// Encryption is to whom chunks are encrypted. Default: to nobody.
	Encryption EncryptionOptions

	// Parallel is how many chunks may be open at once: [Writer.Chunk] waits
	// for one of them to close. Default: 2.
	Parallel int

	// Inline compresses in the goroutine that writes a chunk, and not in one of its own.
	// It is for as many chunks side by side as there are processors, whose handing over
	// from one to another it saves; fewer would leave some of them idle. Default: false.
	Inline bool

	// BufferBytes and Buffers are the size and the number of the buffers that
	// each open chunk owns; the pool holds Parallel x Buffers of them and no
	// more. Default: 256 KiB and 8.
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

// EncryptionOptions says to whom a backup is encrypted. The zero value leaves it
// plain. Recipients and a passphrase may be given together: either opens it.
type EncryptionOptions struct {
	// Recipients are public keys in age's (age1...) or OpenSSH's (ssh-ed25519,
	// ssh-rsa) form.
	Recipients []string

	// Passphrase opens the backup, too, when it is not empty.
	Passphrase string

	// HideNames encrypts the manifest, too, and gives files opaque names: what
	// remains visible is in docs/archive-format.md.
	HideNames bool

	// PassphraseWork is the logarithm of the passphrase's cost. Default: 18, about a
	// second; tests, which the race detector slows down thirty times, lower it.
	PassphraseWork int
}

// Enabled reports whether chunks are encrypted at all.
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
