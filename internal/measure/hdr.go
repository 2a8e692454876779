package measure

import (
	"bytes"
	"compress/zlib"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math"
)

// Cookies of the HdrHistogram V2 encoding with 8-byte words, from the format's
// reference implementation (HdrHistogram/HdrHistogram, AbstractHistogram).
const (
	hdrCookie           = 0x1c849313
	hdrCompressedCookie = 0x1c849314
	hdrHeaderBytes      = 40
	hdrDigits           = 2
)

// EncodeHDR returns the histogram in HdrHistogram's compressed V2 encoding, as
// base64, which the plotters and log processors of that project read. Values are
// nanoseconds.
func (h *Hist) EncodeHDR() (string, error) {
	payload := h.hdrPayload()
	raw := make([]byte, 0, hdrHeaderBytes+len(payload))
	raw = binary.BigEndian.AppendUint32(raw, hdrCookie)
	raw = binary.BigEndian.AppendUint32(raw, uint32(len(payload)))
	raw = binary.BigEndian.AppendUint32(raw, 0) // normalising index offset
	raw = binary.BigEndian.AppendUint32(raw, hdrDigits)
	raw = binary.BigEndian.AppendUint64(raw, 1) // lowest value told apart from 0
	raw = binary.BigEndian.AppendUint64(raw, uint64(maxValue))
	raw = binary.BigEndian.AppendUint64(raw, math.Float64bits(1)) // conversion ratio
	raw = append(raw, payload...)

	var z bytes.Buffer
	w := zlib.NewWriter(&z)
	if _, err := w.Write(raw); err != nil {
		return "", fmt.Errorf("compress histogram: %w", err)
	}
	if err := w.Close(); err != nil {
		return "", fmt.Errorf("compress histogram: %w", err)
	}
	out := make([]byte, 0, 8+z.Len())
	out = binary.BigEndian.AppendUint32(out, hdrCompressedCookie)
	out = binary.BigEndian.AppendUint32(out, uint32(z.Len()))
	return base64.StdEncoding.EncodeToString(append(out, z.Bytes()...)), nil
}

// hdrPayload writes the counts as zigzag varints; a negative number -n stands
// for n empty buckets. What follows the last used bucket is left out.
func (h *Hist) hdrPayload() []byte {
	var out []byte
	var zeros int64
	for _, n := range h.counts {
		if n == 0 {
			zeros++
			continue
		}
		if zeros > 0 {
			out = appendZigZag(out, -zeros)
			zeros = 0
		}
		out = appendZigZag(out, int64(n))
	}
	return out
}

// appendZigZag appends v in the format's own LEB128: seven bits a byte and all
// eight of a ninth, which is where it departs from encoding/binary.
func appendZigZag(b []byte, v int64) []byte {
	u := uint64(v<<1) ^ uint64(v>>63)
	for range 8 {
		if u < 0x80 {
			return append(b, byte(u))
		}
		b = append(b, byte(u)|0x80)
		u >>= 7
	}
	return append(b, byte(u))
}
