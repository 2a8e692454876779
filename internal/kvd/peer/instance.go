package peer

import (
	"crypto/rand"
	"encoding/binary"
	"hash/crc32"
)

// The number by which others know a process says which log it has, since versions
// that know nothing of that take no more fields in a handshake:
//
//	8 bytes  Options.LogID
//	4 bytes  random
//	4 bytes  CRC-32C of these, and of a text
//
// Without a log all bytes are random, as in those versions.
func newInstance(log [8]byte) (n [16]byte) {
	_, _ = rand.Read(n[:]) // never fails
	if log != ([8]byte{}) {
		copy(n[:], log[:])
		binary.LittleEndian.PutUint32(n[12:], instanceSum(n))
	}
	return n
}

// logOf returns the log that an instance tells, zero if it tells none.
func logOf(n [16]byte) (log [8]byte) {
	if binary.LittleEndian.Uint32(n[12:]) == instanceSum(n) {
		copy(log[:], n[:])
	}
	return log
}

func instanceSum(n [16]byte) uint32 {
	sum := crc32.Update(0, crc32.MakeTable(crc32.Castagnoli), []byte("weir log"))
	return crc32.Update(sum, crc32.MakeTable(crc32.Castagnoli), n[:12])
}
