package resp

import "bytes"

// slots is the number of slots of a Redis cluster.
const slots = 16384

// crc16Table is the table of CRC-16/XMODEM, by which Redis assigns keys to slots.
var crc16Table = func() (t [256]uint16) {
	for i := range t {
		crc := uint16(i) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
		t[i] = crc
	}
	return t
}()

// keySlot returns the slot of a key: that of the text between the first '{' and the next '}',
// unless it is empty, otherwise that of the whole key.
func keySlot[S ~string | ~[]byte](key S) int {
	b := []byte(key)
	if open := bytes.IndexByte(b, '{'); open >= 0 {
		if n := bytes.IndexByte(b[open+1:], '}'); n > 0 {
			b = b[open+1 : open+1+n]
		}
	}
	var crc uint16
	for _, c := range b {
		crc = crc<<8 ^ crc16Table[byte(crc>>8)^c]
	}
	return int(crc) % slots
}
