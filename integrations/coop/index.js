// A plugin for Coop (its types/integration.ts, CoopIntegrationPlugin): signals that ask a MemeCourt about an item.
//
// An item's first picture and all its texts are one meme. Whatever goes wrong is thrown: Coop then counts the condition as
// errored, which is neither a match nor a low score.
'use strict';

const modelCard = require('./model_card.json');

const ID = 'MEMECOURT';
const DECISION = 'MEMECOURT_DECISION';
const HARM_SCORE = 'MEMECOURT_HARM_SCORE';
const TIMEOUT_S = 30;

const manifest = {
  id: ID,
  name: 'MemeCourt',
  version: require('./package.json').version,
  description: 'Tries a meme, picture and text together, and gives a verdict with a rationale that can be audited.',
  requiresConfig: true,
  configurationFields: [
    { key: 'url', label: 'Address', required: true, inputType: 'text', placeholder: 'https://court.example.org' },
    { key: 'token', label: 'Token', required: false, inputType: 'password', description: 'With the scope judge.' },
    { key: 'namespace', label: 'Namespace', required: false, inputType: 'text', description: 'Whose content it is.' },
  ],
  signalTypeIds: [DECISION, HARM_SCORE],
  modelCard,
};

// The meme that a signal's input is: a picture's address and a text, each of which may be absent.
function memeOf(value) {
  if (value.data && value.itemType) {
    const fields = value.itemType.schema.map(({ name, type }) => ({ type, value: value.data[name] }));
    const texts = fields.filter(({ type, value: text }) => type === 'STRING' && typeof text === 'string');
    const picture = fields.find(({ type, value: found }) => type === 'IMAGE' && found);
    return { text: texts.map(({ value: text }) => text).join('\n'), url: picture && addressOf(picture.value) };
  }
  if (value.type === 'IMAGE') return { url: addressOf(value.value) };
  if (value.type === 'STRING') return { text: value.value };
  throw new Error(`MemeCourt takes a picture, a text or a whole item, and no ${value.type}.`);
}

function addressOf(picture) {
  const address = typeof picture === 'string' ? picture : picture?.url;
  // Left out, the text beside it would be judged alone.
  if (typeof address !== 'string' || !address) throw new Error('MemeCourt was given a picture without an address.');
  return address;
}

async function ask({ url, token, namespace }, input) {
  const { text, url: picture } = memeOf(input.value);
  const body = { content: { namespace: namespace || '', id: input.contentId || '' } };
  if (picture) body.image_url = picture;
  // Without a text of its own, what stands on the picture is read; a text that is empty would say that there is none.
  if (text) body.text = text;
  const headers = { 'content-type': 'application/json', 'x-timeout-s': String(TIMEOUT_S) };
  if (token) headers.authorization = `Bearer ${token}`;
  const answer = await fetch(new URL('v1/judge', url.endsWith('/') ? url : `${url}/`), {
    method: 'POST',
    headers,
    body: JSON.stringify(body),
    redirect: 'error',
    signal: AbortSignal.timeout((TIMEOUT_S + 5) * 1000),
  });
  const verdict = await answer.json();
  if (!answer.ok) throw new Error(`MemeCourt gave no verdict (${verdict.reason}): ${verdict.detail}`);
  return verdict;
}

// The probability of harm; 1 where a person has to look and no harm was found, so that no threshold lets that pass.
function harmScoreOf(verdict) {
  if (verdict.decision !== 'allow' && verdict.label !== 'LABEL_HARMFUL') return 1;
  return verdict.harm_score ?? (verdict.decision === 'allow' ? 0 : 1);
}

function createSignals({ integrationId, getCredential }) {
  function signal(type, { displayName, description, scalarType, recommendedThresholds, scoreOf }) {
    const outputType = { scalarType };
    const descriptor = {
      id: { type },
      displayName,
      description,
      docsUrl: null,
      recommendedThresholds,
      supportedLanguages: 'ALL',
      pricingStructure: { type: 'FREE' },
      eligibleInputs: ['FULL_ITEM', 'IMAGE', 'STRING'],
      outputType,
      getCost: () => 50,
      needsMatchingValues: false,
      eligibleSubcategories: [],
      needsActionPenalties: false,
      integration: integrationId,
      allowedInAutomatedRules: true,
      async getDisabledInfo(orgId) {
        const { url } = await getCredential(orgId);
        return url ? { disabled: false } : { disabled: true, disabledMessage: 'Say where the MemeCourt is.' };
      },
      async run(input) {
        return { outputType, score: scoreOf(await ask(await getCredential(input.orgId), input)) };
      },
    };
    return { signalTypeId: type, signal: descriptor };
  }
  return [
    signal(DECISION, {
      displayName: 'MemeCourt decision',
      description: 'allow, block, or review where a person should look.',
      scalarType: 'STRING',
      recommendedThresholds: null,
      scoreOf: (verdict) => verdict.decision,
    }),
    signal(HARM_SCORE, {
      displayName: 'MemeCourt harm score',
      description: 'Probability of harm from 0 to 1; 1 where nobody can say that it is harmless.',
      scalarType: 'NUMBER',
      recommendedThresholds: { highPrecisionThreshold: 0.9, highRecallThreshold: 0.5 },
      scoreOf: harmScoreOf,
    }),
  ];
}

module.exports = { manifest, createSignals };
