// Numbers for people: three significant digits, of a width that does not jump;
// round ones, for an axis, without zeros behind the point.

export function count(v, round = false) {
  const a = Math.abs(v);
  if (a >= 1e9) return digits(v / 1e9, round) + "G";
  if (a >= 1e6) return digits(v / 1e6, round) + "M";
  if (a >= 1e4) return digits(v / 1e3, round) + "k";
  if (a >= 100 || Number.isInteger(v)) return String(Math.round(v));
  return digits(v, round);
}

// seconds renders a time with the unit that fits.
export function seconds(v, round = false) {
  if (v === 0) return "0";
  if (v < 0.9995e-3) return digits(v * 1e6, round) + " µs";
  if (v < 0.9995) return digits(v * 1e3, round) + " ms";
  if (v < 119.5) return digits(v, round) + " s";
  if (v < 7200) return Math.round(v / 60) + " min";
  return v < 172800 ? Math.round(v / 3600) + " h" : Math.round(v / 86400) + " d";
}

export function bytes(v, round = false) {
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let i = 0;
  for (; v >= 1024 && i < units.length - 1; i++) v /= 1024;
  return (i === 0 ? Math.round(v) : digits(v, round)) + " " + units[i];
}
bytes.unit = 1024;

export const percent = (v) => Math.round(v * 100) + " %";

const exact = (v) => String(Math.round(v));

export const formats = { count, exact, seconds, bytes, percent };

function digits(v, round = false) {
  if (round) return String(Number(v.toPrecision(3)));
  const a = Math.abs(v);
  return v.toFixed(a >= 99.95 ? 0 : a >= 9.995 ? 1 : 2);
}
