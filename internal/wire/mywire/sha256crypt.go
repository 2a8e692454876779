package mywire

import "crypto/sha256"

// cryptDigestLen is the length in characters of a digest of sha256Crypt.
const cryptDigestLen = 43

// sha256Crypt returns the digest of crypt(3)'s method 5 (Ulrich Drepper, "Unix crypt using
// SHA-256 and SHA-512", 2007), which caching_sha2_password stores. Unlike crypt(3), MySQL uses
// the whole salt of 20 bytes.
func sha256Crypt(password, salt []byte, rounds int) string {
	b := sha256.New()
	b.Write(password)
	b.Write(salt)
	b.Write(password)
	alt := b.Sum(nil)

	a := sha256.New()
	a.Write(password)
	a.Write(salt)
	a.Write(repeat(alt, len(password)))
	for n := len(password); n > 0; n >>= 1 {
		if n&1 != 0 {
			a.Write(alt)
		} else {
			a.Write(password)
		}
	}
	sum := a.Sum(nil)

	p := cryptSequence(password, len(password))
	s := cryptSequence(salt, 16+int(sum[0]))
	for i := range rounds {
		c := sha256.New()
		if i%2 != 0 {
			c.Write(p)
		} else {
			c.Write(sum)
		}
		if i%3 != 0 {
			c.Write(s)
		}
		if i%7 != 0 {
			c.Write(p)
		}
		if i%2 != 0 {
			c.Write(sum)
		} else {
			c.Write(p)
		}
		sum = c.Sum(sum[:0])
	}
	return cryptBase64(sum)
}

// cryptSequence hashes text the given number of times, and repeats the digest to the text's
// length.
func cryptSequence(text []byte, times int) []byte {
	h := sha256.New()
	for range times {
		h.Write(text)
	}
	return repeat(h.Sum(nil), len(text))
}

// repeat returns n bytes of b, repeated.
func repeat(b []byte, n int) []byte {
	out := make([]byte, 0, n+len(b))
	for len(out) < n {
		out = append(out, b...)
	}
	return out[:n]
}

// cryptBase64 writes a digest in crypt(3)'s own base64, its bytes in crypt's own
// order: triples (i, i+10, i+20) that rotate by one.
func cryptBase64(sum []byte) string {
	const alphabet = "./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	out := make([]byte, 0, cryptDigestLen)
	put := func(w uint, chars int) {
		for range chars {
			out = append(out, alphabet[w&0x3f])
			w >>= 6
		}
	}
	i, j, k := 0, 10, 20
	for range 10 {
		put(uint(sum[i])<<16|uint(sum[j])<<8|uint(sum[k]), 4)
		i, j, k = k+1, i+1, j+1
	}
	put(uint(sum[31])<<8|uint(sum[30]), 3)
	return string(out)
}
