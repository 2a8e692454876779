package binlog

import (
	"fmt"
	"time"
)

// Dates and times are stored in Value.n as follows: DATE and DATETIME packed as in MySQL (see
// packed), TIME as signed microseconds, TIMESTAMP as microseconds since 1970.

// civil is a DATE or DATETIME with its parts.
type civil struct{ year, month, day, hour, minute, second, micro int }

// microBits is the number of bits for microseconds, below the seconds.
const microBits = 24

// packed packs a date and time into one number:
//
//	year*13+month 17 | day 5 | hour 5 | minute 6 | second 6 | microsecond 24
func packed(c civil) uint64 {
	ymd := uint64(c.year*13+c.month)<<5 | uint64(c.day)
	hms := uint64(c.hour)<<12 | uint64(c.minute)<<6 | uint64(c.second)
	return (ymd<<17|hms)<<microBits | uint64(c.micro)
}

func (v Value) datetime() civil {
	whole := v.n >> microBits
	ymd, hms := whole>>17, whole&(1<<17-1)
	ym := ymd >> 5
	return civil{
		year: int(ym / 13), month: int(ym % 13), day: int(ymd & 31),
		hour: int(hms >> 12), minute: int(hms >> 6 & 63), second: int(hms & 63),
		micro: int(v.n & (1<<microBits - 1)),
	}
}

func (d *decoder) temporal(c *Column) (Value, error) {
	v := Value{width: byte(c.Meta)}
	switch c.Type {
	case typeDate, typeNewDate:
		n := d.little(3)
		v.kind, v.width = KindDate, 0
		v.n = packed(civil{year: int(n >> 9), month: int(n >> 5 & 15), day: int(n & 31)})
	case typeDatetime2:
		v.kind = KindDatetime
		v.n = d.big(5)&(1<<39-1)<<microBits | d.fraction(c.Meta)
	case typeTimestamp2:
		v.kind = KindTimestamp
		v.n = d.big(4) * 1e6
		v.n += d.fraction(c.Meta)
	case typeTime2:
		v.kind, v.n = KindTime, d.time2(c.Meta)
	case typeTimestamp:
		v.kind, v.width, v.n = KindTimestamp, 0, d.little(4)*1e6
	case typeDatetime: // before MySQL 5.6: decimal digits YYYYMMDDhhmmss
		n := d.little(8)
		v.kind, v.width = KindDatetime, 0
		date, clock := n/1e6, n%1e6
		v.n = packed(civil{
			year: int(date / 1e4 % 1e4), month: int(date / 100 % 100), day: int(date % 100),
			hour: int(clock / 1e4), minute: int(clock / 100 % 100), second: int(clock % 100),
		})
	case typeTime: // before MySQL 5.6: decimal digits hhmmss
		n := int64(d.little(3)<<40) >> 40
		v.kind, v.width = KindTime, 0
		v.n = uint64((n/1e4*3600 + n/100%100*60 + n%100) * 1e6)
	default:
		return Value{}, fmt.Errorf("column type %d: unknown: %w", c.Type, ErrMalformed)
	}
	return v, nil
}

// fractionBytes returns the size in bytes of a fraction with fsp digits.
func fractionBytes(fsp uint16) int { return int(fsp+1) / 2 }

// unitMicros is the unit, in microseconds, of a fraction of n bytes.
var unitMicros = [...]uint64{0, 10000, 100, 1}

// fraction reads a fraction of a second, in microseconds.
func (d *decoder) fraction(fsp uint16) uint64 {
	n := fractionBytes(fsp)
	if n >= len(unitMicros) {
		d.bytes(-1)
		return 0
	}
	return d.big(n) * unitMicros[n]
}

// time2 reads a TIME as microseconds. Whole and fraction together are one number, with an
// offset that makes it positive.
func (d *decoder) time2(fsp uint16) uint64 {
	n := fractionBytes(fsp)
	if n >= len(unitMicros) {
		d.bytes(-1)
		return 0
	}
	bits := 8 * uint(n)
	v := int64(d.big(3+n)) - 0x800000<<bits
	negative := v < 0
	if negative {
		v = -v
	}
	whole := v >> bits
	seconds := whole>>12&1023*3600 + whole>>6&63*60 + whole&63
	micros := seconds*1e6 + v&(1<<bits-1)*int64(unitMicros[n])
	if negative {
		micros = -micros
	}
	return uint64(micros)
}

func (v Value) appendTime(dst []byte) []byte {
	var micro int
	switch v.kind {
	case KindDate:
		c := v.datetime()
		return fmt.Appendf(dst, "%04d-%02d-%02d", c.year, c.month, c.day)
	case KindDatetime:
		c := v.datetime()
		micro = c.micro
		dst = fmt.Appendf(dst, "%04d-%02d-%02d %02d:%02d:%02d", c.year, c.month, c.day, c.hour, c.minute, c.second)
	case KindTimestamp:
		if v.n < 1e6 {
			dst = append(dst, "0000-00-00 00:00:00"...) // the meaning of second 0
			break
		}
		dst = time.UnixMicro(int64(v.n)).UTC().AppendFormat(dst, time.DateTime)
		micro = int(v.n % 1e6)
	case KindTime:
		n := int64(v.n)
		if n < 0 {
			dst, n = append(dst, '-'), -n
		}
		micro = int(n % 1e6)
		n /= 1e6
		dst = fmt.Appendf(dst, "%02d:%02d:%02d", n/3600, n/60%60, n%60)
	}
	if v.width > 0 {
		digits := fmt.Sprintf("%06d", micro)
		dst = append(append(dst, '.'), digits[:min(int(v.width), len(digits))]...)
	}
	return dst
}
