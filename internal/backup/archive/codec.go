package archive

import (
	"fmt"
	"strconv"
	"strings"
)

// A Codec is a compression format. The compressed files are standard: the tool of that name
// reads them.
type Codec string

// The codecs.
const (
	None Codec = "none"
	Gzip Codec = "gzip"
	Zstd Codec = "zstd"
	LZ4  Codec = "lz4"
)

// Codecs returns all codecs.
func Codecs() []Codec { return []Codec{None, Gzip, Zstd, LZ4} }

// Suffix returns the suffix of file names: "", ".gz", ".zst" or ".lz4".
func (c Codec) Suffix() string {
	switch c {
	case Gzip:
		return ".gz"
	case Zstd:
		return ".zst"
	case LZ4:
		return ".lz4"
	}
	return ""
}

// Compression is a codec and its level.
type Compression struct {
	Codec Codec `json:"codec"`

	// Level is on the scale of the codec's own tool: gzip 1-9, zstd 1-22, lz4 1-12. The Go
	// implementations have fewer levels than the tools; the nearest one is used. 0 means the
	// default of this package.
	Level int `json:"level,omitempty"`
}

// ParseCompression reads "zstd", "zstd:3", "gzip:9", "lz4" or "none".
func ParseCompression(s string) (Compression, error) {
	name, level, has := strings.Cut(s, ":")
	c := Compression{Codec: Codec(name)}
	if has {
		n, err := strconv.Atoi(level)
		if err != nil || n < 1 {
			return c, fmt.Errorf("compression %q: the level is not a number above 0", s)
		}
		c.Level = n
	}
	return c, c.validate()
}

// String is the inverse of ParseCompression.
func (c Compression) String() string {
	if c.Level == 0 {
		return string(c.Codec)
	}
	return fmt.Sprintf("%s:%d", c.Codec, c.Level)
}

func (c Compression) validate() error {
	highest, known := map[Codec]int{None: 0, Gzip: 9, Zstd: 22, LZ4: 12}[c.Codec]
	if !known {
		return fmt.Errorf("compression %q: none, gzip, zstd and lz4 are known", c.Codec)
	}
	if c.Level < 0 || c.Level > highest {
		return fmt.Errorf("compression %s: level %d is not between 1 and %d", c.Codec, c.Level, highest)
	}
	return nil
}
