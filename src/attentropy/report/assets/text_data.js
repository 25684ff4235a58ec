// Numbers of a text: packed in the page, or asked of the page's own server.

// 16-bit floats and integers, all low bytes before all high ones.
async function unpackWords(text) {
  const bytes = await unpack(text);
  return (width) => {
    const count = bytes.length / width;
    const words = new Uint32Array(count);
    for (let plane = width - 1; plane >= 0; plane--) {
      for (let i = 0; i < count; i++) words[i] = words[i] * 256 + bytes[plane * count + i];
    }
    return words;
  };
}

function halfFloat(word) {
  const [sign, exponent, fraction] = [word & 0x8000 ? -1 : 1, (word >> 10) & 31, word & 1023];
  if (exponent === 31) return fraction ? null : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
}

const unpackFloats = async (text) => Array.from((await unpackWords(text))(2), halfFloat);

async function unpackPlaces(text, wide) {
  const [width, none] = wide ? [4, 0xffffffff] : [2, 0xffff];
  return Array.from((await unpackWords(text))(width), (place) => (place === none ? -1 : place));
}

const LOOKS = { keys: ["keys", "weights", "rest"], readers: ["readers", "reader_weights", "reader_rest"] };

// floats(scope, name) -> a number for every token; look(scope, token, show) -> { rows: [[place, weight]], rest }.
function textData(payload) {
  const cache = new Map();
  const remember = (key, make) => cache.get(key) ?? cache.set(key, make()).get(key);
  const heads = payload.served
    ? payload.layers.flatMap((layer, i) => [...Array(layer.heads).keys()].map((head) => `${i}.${head}`))
    : Object.keys(payload.looks).sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const ask = async (address) => {
    const answer = await fetch(address, { cache: "no-store" });
    if (!answer.ok) throw new Error(await answer.text());
    return answer.json();
  };
  const scopes = (scope) => payload.scopes[scope] ?? remember(`scope ${scope}`, () => ask(`api/head/${scope}`));

  const floats = (scope, name) =>
    remember(`${scope} ${name}`, async () => unpackFloats(name === "surprise" ? payload.surprise : (await scopes(scope))[name]));

  const table = (scope, show) =>
    remember(`${scope} looks ${show}`, async () => {
      const [places, weights, rest] = LOOKS[show].map((name) => payload.looks[scope][name]);
      return { places: await unpackPlaces(places, payload.tokens.length >= 0xffff), weights: await unpackFloats(weights), rest: await unpackFloats(rest) };
    });

  async function packedLook(scope, token, show) {
    const { places, weights, rest } = await table(scope, show);
    const count = payload.tokens.length;
    const at = Array.from({ length: places.length / count }, (_, rank) => rank * count + token).filter((i) => places[i] >= 0);
    return { rows: at.map((i) => [places[i], weights[i]]), rest: rest[token] };
  }
  const servedLook = async (scope, token, show) => (await remember(`row ${scope} ${token}`, () => ask(`api/row/${scope}/${token}`)))[show];

  return {
    heads,
    first: Object.keys(payload.looks)[0] ?? (payload.served ? heads[0] : "all"), // the most telling head
    knows: (scope) => (payload.served ? heads.includes(scope) : Object.hasOwn(payload.looks, scope)),
    scopes: [...new Set([...Object.keys(payload.scopes), ...heads])],
    floats,
    look: (scope, token, show) => (payload.looks[scope] ? packedLook : servedLook)(scope, token, show),
  };
}
